"""What a file of weights holds, of torch or safetensors: read without running it, damage told in a sentence."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fastget.common.archive import START, damage_in, other_content
from fastget.common.text import and_more, first_line

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


def load_backbone_weights(backbone: nn.Module, file: Path, convert: Callable[[State], State] | None = None) -> None:
    """A local file of weights: a state dict as torchvision, timm or fastget saves them. Its head, if any, is left out.

    `convert` brings it to the backbone's names and shapes."""
    given: State = {
        k.removeprefix("module.").removeprefix("network.").removeprefix("backbone."): v
        for k, v in read_weights(file).items()
    }
    if convert is not None:
        try:
            given = convert(given)
        except (KeyError, IndexError, RuntimeError, TypeError, ValueError, AssertionError, AttributeError):
            given = dict(given)  # of something else altogether: what is missing is reported below
    fitting = {k: given[k] for k in backbone.state_dict() if k in given}
    if why := misfit(backbone, fitting):
        raise ValueError(f"network.weights: {file} does not fit this network: {why}. Is network.name the same?")
    refuse_unsound(file, fitting)
    backbone.load_state_dict(fitting, strict=False)


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
    if file.suffix != ".safetensors" and start[8:9] != b"{":  # the length of a header, and a header in JSON
        return _read_torch(file, zipped=start[:2] == b"PK")
    try:
        return load_file(file)
    except Exception as error:  # a type of numbers that torch lacks, a header that is no text ...
        what = "damaged, cut short or no safetensors file" if isinstance(error, SafetensorError) else "damaged"
        raise ValueError(f"network.weights: {file} is {what} ({_line(error)}): {AGAIN}") from error


def _read_torch(file: Path, zipped: bool) -> Any:
    """Torch's archives, and the pickles of before version 1.6, which have no checksums."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of odd pickles: the error says what is wrong
        try:
            damage = damage_in(file) if zipped else ""
            state = None if damage else torch.load(file, map_location="cpu", weights_only=True)
        except zipfile.BadZipFile as error:
            raise ValueError(f"network.weights: {file} is cut short or damaged ({_line(error)}): {AGAIN}") from error
        except Exception as error:  # a damaged file makes its readers raise almost anything
            refused = ("Unsupported global", "Unsupported class", "instantiate class")
            if isinstance(error, pickle.UnpicklingError) and any(word in str(error) for word in refused):
                # torch's own advice, to load it all the same, is left out: it would run what the file holds
                raise ValueError(
                    f"network.weights: {file} is not a file of weights alone: it holds objects that could run code, or "
                    "is damaged. Save the state dict alone: torch.save(model.state_dict(), FILE)"
                ) from error
            why = "it does not read as torch's" if isinstance(error, pickle.UnpicklingError) else _line(error)
            raise ValueError(f"network.weights: {file} is damaged or not a file of weights ({why}): {AGAIN}") from error
    if damage:
        raise ValueError(f"network.weights: {file} is damaged ({damage}): {AGAIN}")
    return state


def _line(error: Exception) -> str:
    return first_line(error)[:200]
