"""Files of weights, of torch or safetensors: read without running what they hold, damage told in a sentence."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fastget.common.archive import START, damage_in, other_content
from fastget.common.text import and_more

State = Mapping[str, Tensor]  # by name
AGAIN = "download it again, or give another file"


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by their names. ValueError says what is wrong with it."""
    state = _read(file)
    for key in ("state_dict", "model", "network"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping):
        raise ValueError(f"network.weights: {file} holds a {type(state).__name__}, expected a state dict")
    return {str(name): value for name, value in state.items() if isinstance(value, Tensor)}


def misfit(network: nn.Module, given: State) -> str:
    """In words, how tensors are not those of a network; empty if they are. What batch-norm counts may be missing."""
    wanted = network.state_dict()
    wrong = {
        "are missing": [k for k in wanted if k not in given and not k.endswith("num_batches_tracked")],
        "are unknown": [k for k in given if k not in wanted],
        "have another shape": [k for k in wanted if k in given and given[k].shape != wanted[k].shape],
    }
    return ", ".join(f"{len(names)} entries {what} ({and_more(names, 3)})" for what, names in wrong.items() if names)


def refuse_unsound(file: Path, tensors: State) -> None:
    """ValueError unless each is made of plain, finite numbers."""
    for name, value in tensors.items():
        odd = "a tensor without content (meta)" if value.is_meta else ""
        odd = odd or ("quantized" if value.is_quantized else "")
        odd = odd or ("" if value.layout == torch.strided else f"a sparse tensor ({value.layout})")
        odd = odd or ("a tensor of complex numbers" if value.is_complex() else "")
        if odd:
            raise ValueError(f"network.weights: {name} in {file} is {odd}: save the weights as plain numbers")
    wrong = [name for name, value in tensors.items() if not bool(torch.isfinite(value).all())]
    if wrong:
        raise ValueError(
            f"network.weights: {file} holds NaN or infinity in {len(wrong):,} of {len(tensors):,} entries "
            f"({and_more(wrong, 3)}): it is damaged, or of a training that diverged; {AGAIN}"
        )


def _read(file: Path) -> Any:
    if not file.is_file():
        raise ValueError(
            f"network.weights: no file {file}; give imagenet, none, a file of weights (.safetensors, .pt, .pth), or "
            "the name of torchvision's for this backbone (IMAGENET1K_V1 ...)"
        )
    try:
        with file.open("rb") as stream:
            start = stream.read(START)
    except OSError as error:
        raise ValueError(f"network.weights: cannot read {file}: {error.strerror}") from error
    if what := other_content(start):
        raise ValueError(f"network.weights: {file} is {what}, not a file of weights: {AGAIN}")
    return _read_safetensors(file) if _is_safetensors(file, start) else _read_torch(file, zipped=start[:2] == b"PK")


def _is_safetensors(file: Path, start: bytes) -> bool:
    """By its name, or by how it begins: the length of a header, and a header in JSON."""
    return file.suffix == ".safetensors" or start[8:9] == b"{"


def _read_safetensors(file: Path) -> Any:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(
            f"network.weights: {file} is damaged, cut short or no safetensors file ({_line(error)}): {AGAIN}"
        ) from error
    except Exception as error:  # a type of numbers that torch lacks, a header that is no text ...
        raise ValueError(f"network.weights: {file} is damaged ({_line(error)}): {AGAIN}") from error


def _read_torch(file: Path, zipped: bool) -> Any:
    """Torch's archives, and the pickles of before version 1.6, which have no checksums."""
    try:
        if zipped and (damage := damage_in(file)):
            raise ValueError(f"network.weights: {file} is damaged ({damage}): {AGAIN}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of odd pickles: the error says what is wrong
            return torch.load(file, map_location="cpu", weights_only=True)
    except ValueError as error:
        if str(error).startswith("network.weights"):
            raise
        raise _damaged(file, error) from error
    except zipfile.BadZipFile as error:
        raise ValueError(f"network.weights: {file} is cut short or damaged ({_line(error)}): {AGAIN}") from error
    except pickle.UnpicklingError as error:
        if not any(word in str(error) for word in ("Unsupported global", "Unsupported class", "instantiate class")):
            raise _damaged(file, error) from error
        # torch's own advice, to load it all the same, is left out: it would run what the file holds
        raise ValueError(
            f"network.weights: {file} is not a file of weights alone: it holds objects that could run code, or is "
            "damaged. Save the state dict alone: torch.save(model.state_dict(), FILE)"
        ) from error
    except Exception as error:  # a damaged file makes its readers raise almost anything
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> ValueError:
    return ValueError(f"network.weights: {file} is damaged or not a file of weights ({_line(error)}): {AGAIN}")


def _line(error: Exception) -> str:
    """What torch or safetensors say, without torch's advice."""
    if isinstance(error, pickle.UnpicklingError):
        return "it does not read as torch's"
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
