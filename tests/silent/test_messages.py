"""A sentence in place of a traceback: bad files of weights, settings, caches, and a full disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from tests.pictures import photograph
from tests.silent.support import CHECK, FEW, Said, full_disk, on_folders, say


def backbone_of(place: Path) -> dict[str, Tensor]:
    """The weights of the run's backbone."""
    model = torch.load(place / "run" / "checkpoints" / "final.pt", map_location="cpu", weights_only=True)["model"]
    found = {name.partition("backbone.")[2]: value for name, value in model.items() if "backbone." in name}
    assert found
    return found


def sentence(done: Said, *parts: str, code: int = 2) -> None:
    """It ends with a sentence that a person can use."""
    assert "Traceback" not in done.words, f"a traceback: {done.err.strip().splitlines()[-1]}"
    assert done.code == code, f"exit code {done.code}: {done.words[-200:]}"
    for part in parts:
        assert part in done.words, f"nothing of {part!r}: {done.words[-300:]}"


# --- weights -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"hello, these are no weights\n", "is a text file"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "is a web page"),
    ],
    ids=["empty", "text", "page"],
)
def test_what_is_no_file_of_weights(place: Path, content: bytes, said: str) -> None:
    Path("w.pth").write_bytes(content)
    done = say(*on_folders(place / "data", *FEW, "network.weights=w.pth"))
    sentence(done, f"w.pth {said}")
    assert "weights_only" not in done.words


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: value * torch.nan, "NaN"),
        (lambda value: value.to_sparse(), "sparse"),
        (lambda value: value.to("meta"), "meta"),
    ],
    ids=["nan", "sparse", "meta"],
)
def test_weights_that_are_no_plain_numbers(place: Path, change: Callable[[Tensor], Tensor], said: str) -> None:
    state = backbone_of(place)
    name = next(iter(state))
    torch.save({**state, name: change(state[name])}, "w.pth")
    done = say(*on_folders(place / "data", *FEW, "network.weights=w.pth"))
    sentence(done, "network.weights", said)
    assert "optim.lr" not in done.words  # which has no part in it


# --- settings ----------------------------------------------------------------------------------------


def test_settings_that_are_nested_without_end() -> None:
    Path("deep.yaml").write_text("train: {seeds: " + "[" * 20_000)
    sentence(say("train", "--config", "deep.yaml"), "deep.yaml")


def test_a_width_that_no_memory_holds(place: Path) -> None:
    sentence(say(*on_folders(place / "data", *FEW, "network.bottleneck_dim=1000000000000")), "network.bottleneck_dim")


def test_a_crop_that_a_network_cannot_take(place: Path) -> None:
    own = ("network.name=vit_b_16", "data.resize=32", "data.crop=28")
    sentence(say(*on_folders(place / "data", *FEW, *own)), "vit_b_16", "28")


# --- files of fastget's own, and the disk --------------------------------------------------------------


def test_lists_of_unlike_classes_are_shown(place: Path) -> None:
    Path("a.txt").write_text("photo/ant/000.png 0\n")
    Path("b.txt").write_text("sketch/bee/000.png 0\nsketch/cat/000.png 3\nsketch/cat/001.jpg 2\n")
    both = ("--source", "a.txt", "--target", "b.txt")
    sentence(say("data", "show", "lists", "--root", place / "data", *both, "--out", "s.png"), "contact sheet", code=0)


def test_what_checks_remember_is_made_anew(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
    assert say(*CHECK, place / "data").code == 0
    (file,) = (file for file in Path("cache").rglob("*") if file.is_file())
    damaged = bytearray(file.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # an archive's headers: a kind that nobody reads
        damaged[damaged.index(mark) + flags] |= 0x20
    for content in (bytes(damaged), b"rubbish"):
        file.write_bytes(content)
        done = say(*CHECK, place / "data")
        sentence(done, "24 files checked", code=0)
        assert str(file) in done.words, "no word about it"


def test_a_disk_that_fills_while_images_are_packed(place: Path) -> None:
    data = shutil.copytree(place / "data", "data")
    with full_disk() as fill:
        fill(8000)
        done = say("data", "pack", "folder", "--root", data, "--format", "raw", "--resize", "64")
    sentence(done, "File too large", code=1)


def test_an_image_on_which_pil_raises_what_it_should_not(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Path(shutil.copytree(place / "data", "data"))
    photograph().save(data / "sketch" / "ant" / "a.tif")

    def broken(*_: Any) -> NoReturn:
        raise TypeError("'NoneType' object is not subscriptable")

    monkeypatch.setattr("PIL.TiffImagePlugin.TiffImageFile.load", broken)
    sentence(say(*on_folders("data", *FEW)), "a.tif")
