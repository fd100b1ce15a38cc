"""A file of weights that is none, or was damaged: a sentence of ours, whatever its readers say."""

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fastget.networks.weights import load_backbone_weights
from tests.fuzz.mutations import mutations


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2))


def write(file: Path, kind: str, state: dict[str, Any]) -> Path:
    if kind == "safetensors":
        save_file(state, file)
    else:
        torch.save(state, file, _use_new_zipfile_serialization=kind == "zip")
    return file


@pytest.mark.parametrize(
    ("kind", "suffix"), [("zip", ".pt"), ("legacy", ".pth"), ("safetensors", ".pt"), ("safetensors", ".safetensors")]
)
def test_sound_files_are_read(tmp_path: Path, kind: str, suffix: str) -> None:
    state = {name: torch.rand_like(value.float()).to(value.dtype) for name, value in net().state_dict().items()}
    network = net()
    load_backbone_weights(network, write(tmp_path / f"w{suffix}", kind, state))
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


FILES = {
    "empty": (b"", "is empty"),
    "text": (b"hello, these are no weights\n", "is a text file"),
    "page": (b"\n<!DOCTYPE html><html><body>404</body></html>", "is a web page"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n", "pointer of Git LFS"),
    "noise": (bytes(range(256)) * 8, "damaged or not a file of weights"),
    "pickle": (pickle.dumps({"w": nn.Linear(1, 1)}), "not a file of weights"),
    "objects": (saved({"w": nn.Linear(1, 1)}), "could run code"),
}


@pytest.mark.parametrize("kind", FILES)
def test_what_is_no_file_of_weights(tmp_path: Path, kind: str) -> None:
    content, said = FILES[kind]
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(ValueError, match=said) as refused:
        load_backbone_weights(net(), tmp_path / "w.pt")
    assert str(refused.value).startswith(f"network.weights: {tmp_path / 'w.pt'}")
    assert "weights_only" not in str(refused.value)


@pytest.mark.parametrize("kind", ["zip", "safetensors"])
def test_a_file_that_is_cut_short(tmp_path: Path, kind: str) -> None:
    file = write(tmp_path / "w", kind, net().state_dict())
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ValueError, match="cut short"):
        load_backbone_weights(net(), file)


def sparse(value: Tensor) -> Tensor:
    return value.to_sparse()


ENTRIES = {
    "sparse": (sparse, "is a sparse tensor"),
    "meta": (lambda value: value.to("meta"), r"without content \(meta\)"),
    "complex": (lambda value: value.to(torch.complex64), "complex numbers"),
    "nan": (lambda value: value * torch.nan, r"NaN or infinity in 1 of .* entries \(0\.weight\)"),
    "infinite": (lambda value: value / 0, "NaN or infinity"),
}


@pytest.mark.parametrize("kind", ENTRIES)
def test_entries_that_are_no_plain_numbers(tmp_path: Path, kind: str) -> None:
    change, said = ENTRIES[kind]
    state = net().state_dict()
    state["0.weight"] = change(state["0.weight"])
    with pytest.raises(ValueError, match=said):
        load_backbone_weights(net(), write(tmp_path / "w.pt", "zip", state))


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
@pytest.mark.parametrize("count", [1000, 10_000])
def test_mutations(tmp_path: Path, kind: str, count: int) -> None:
    """Loaded or refused, and what is loaded is finite."""
    good = write(tmp_path / "good", kind, net().state_dict()).read_bytes()
    said, network, file = [], net(), tmp_path / "bad.pt"
    for content in mutations(good, count, seed=3):
        file.write_bytes(content)
        try:
            load_backbone_weights(network, file)
        except ValueError as error:
            said.append(str(error))
        assert all(bool(torch.isfinite(value).all()) for value in network.state_dict().values())
    assert len(said) > count / 4
    assert all(text.startswith("network.weights: ") and "\n" not in text for text in said)
