"""A first run on a folder of one's own: it runs, the backbone is frozen, and the full run's cost is told."""

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import fastget
from fastget.commands.main import main
from fastget.config import make_config, presets
from fastget.data.domains import load_domains
from fastget.networks.preprocessing import filled
from fastget.training.engine import Engine
from fastget.training.passes import about, operations
from tests.pictures import write_domains

SMALLER = {"train.max_steps": 4, "train.batch_size": 4, "train.eval_every": 4, "train.log_every": 1}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_domains(tmp_path / "data")


def tiny_folder(root: Path) -> dict[str, Any]:
    return {"data.name": "folder", "data.root": str(root), "data.source": "photo", "data.target": "sketch",
            "network.name": "small", "network.weights": "none", "data.resize": 24, "data.crop": 20,
            "train.batch_size": 4, "train.tensorboard": False}  # fmt: skip


def test_a_first_run(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in SMALLER.items():
        monkeypatch.setitem(presets.QUICK_TRAIN, key, value)
    monkeypatch.setitem(presets.QUICK_IMAGES, "data.limit", 20)
    monkeypatch.setitem(presets.QUICK_IMAGES, "data.crop", 32)
    own = ["network.weights=none", "train.tensorboard=false", "train.watch=0"]
    where = ["--data", "folder", "--root", str(root), "--source", "photo", "--target", "sketch"]
    out = tmp_path / "run"
    assert main(["train", "--preset", "quick", *where, "--out", str(out), "--set", *own]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "photo: 20 of its 36 images are used (data.limit)" in shown
    # ten epochs of one batch of 36, of which the warm-up's three see the source alone, and eleven looks at the 36
    # target images and one at the source, for the start of GeT's prior
    assert "resnet50 at 224 pixels, 10 steps of 36 images a domain" in shown
    assert f"costs {3 * 36 * 3 + 7 * 72 * 3:,} image passes of training and {12 * 36} of evaluation" in shown
    assert re.search(r"at the speed measured here about \d+ (seconds|minutes|hours)", shown)
    # a network without weights, on noise: warned of at the start, and said again at the end
    summary = json.loads((out / "summary.json").read_text())
    assert "low_agreement" in [one["name"] for one in summary["verdict"]]
    assert shown.count("too few to tell which classes it has") == 2
    assert "probably absent" not in shown
    split = json.loads((out / "split.json").read_text())
    assert (split["limit"], split["whole"]) == (20, {"source": 36, "target": 36})
    assert summary["images"] == {"source": 20, "target": 20}
    assert len((out / "predictions.csv").read_text().splitlines()) == 21


def test_a_full_run_tells_no_such_thing(root: Path, tmp_path: Path) -> None:
    text = io.StringIO()
    given = {**tiny_folder(root), "train.max_steps": 2, "train.warmup_steps": 1, "train.out": str(tmp_path / "r")}
    fastget.train(given, console=Console(file=text))
    assert "saved in" in text.getvalue()
    assert "The full run" not in text.getvalue()


def test_a_frozen_backbone_is_not_differentiated_and_does_not_move(root: Path) -> None:
    config = filled(make_config({**tiny_folder(root), "train.preset": "quick", "train.warmup_steps": 0}))
    engine = Engine(config, 0, load_domains(config.data), torch.device("cpu"))
    before = {name: value.clone() for name, value in engine.network.named_parameters()}
    batches = engine.steps()
    engine.train_step(next(batches))
    batches.close()
    moved = {name for name, value in engine.network.named_parameters() if not torch.equal(value, before[name])}
    assert moved
    assert not any(name.startswith("backbone.") for name in moved)
    assert all(value.grad is None for value in engine.network.backbone.parameters())
    assert engine.meter.read().passes["source"] == 4  # one pass an image, not three


def test_what_a_pass_computes() -> None:
    config = filled(make_config({"data.name": "folder", "network.name": "resnet18", "network.weights": "none"}))
    state = torch.get_rng_state()
    full = operations(config, 10) or 0
    assert torch.equal(torch.get_rng_state(), state)
    assert full == pytest.approx(2 * 1.814e9, rel=0.01)  # torchvision tells 1.814 GFLOPs, of multiply-adds
    small = dataclasses.replace(config, data=dataclasses.replace(config.data, crop=112))
    assert operations(small, 10) == pytest.approx(full / 4, rel=0.1)  # 7 pixels are halved to 4


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 seconds"),
        (80, "80 seconds"),
        (91, "2 minutes"),
        (5000, "83 minutes"),
        (7200, "2 hours"),
        (3e5, "3 days"),
    ],
)
def test_lengths_of_time(seconds: float, words: str) -> None:
    assert about(seconds) == words
