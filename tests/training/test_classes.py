"""classes.csv of whole runs: the last evaluations of the adapted model, the same when the run is resumed."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from fastget.features.imported import import_features
from fastget.runs.checkpoint import load_checkpoint, save_checkpoint
from fastget.runs.folder import read_predictions
from fastget.training.train import Result, train
from tests.features.support import CLASSES, on_features, small_store, torch_file

EVERY = {"train__eval_every": 2, "train__checkpoint_every": 3, "train__keep_checkpoints": 4}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of 48 rows. Not to be written to."""
    return small_store(tmp_path_factory.mktemp("features") / "small").folder


def rows_of(result: Result) -> list[dict[str, str]]:
    with (result.folder / "classes.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def steps_of(result: Result) -> list[int]:
    state = load_checkpoint(result.folder / "checkpoints" / "final.pt")
    return [one["step"] for one in state["tallies"]]


@pytest.mark.parametrize(
    ("method", "steps"), [("get", [6, 8, 10, 12]), ("source-only", [4, 6, 8, 10, 12]), ("mcc", [4, 6, 8, 10, 12])]
)
def test_a_runs_classes(method: str, steps: list[int], root: Path, tmp_path: Path) -> None:
    """Those of the warm-up are left out, where the method has one."""
    extra: dict[str, Any] = {} if method == "get" else {"train__warmup_steps": 0}
    result = train(on_features(root, tmp_path / "r", method__name=method, **EVERY, **extra), quiet=True)
    rows = rows_of(result)
    assert [row["class"] for row in rows] == list(CLASSES)
    said = list(read_predictions(result.folder).values())
    assert [int(row["predicted"]) for row in rows] == [said.count(name) for name in CLASSES]
    assert [row["true_share"] for row in rows] == ["0.250000"] * 4
    assert steps_of(result) == steps
    found = result.summary.classes
    assert found is not None
    assert found["evaluations"] == len(steps)
    assert found["probably_absent"] == sum(row["probably_absent"] == "true" for row in rows)
    off = sum(abs(float(row["share"]) - 0.25) for row in rows) / 2
    assert found["total_variation"] == pytest.approx(off, abs=1e-5)
    assert json.loads((result.folder / "summary.json").read_text())["classes"] == found
    assert (result.folder / "classes.png").stat().st_size > 1000


@pytest.mark.parametrize("left", ["step_00000003.pt", "step_00000009.pt", "final.pt"])
def test_resumed_it_ends_with_the_same(left: str, root: Path, tmp_path: Path) -> None:
    """From the warm-up, from between two evaluations, and from the very end, where the last one is made again."""
    whole = train(on_features(root, tmp_path / "whole", **EVERY), quiet=True)
    cut = Path(shutil.copytree(whole.folder, tmp_path / "cut"))
    for name in ("summary.json", "classes.csv", "classes.png"):
        (cut / name).unlink()
    for file in (cut / "checkpoints").iterdir():
        if file.name > left or (file.name == "final.pt" != left):
            file.unlink()
    again = train(on_features(root, cut, train__resume="auto", **EVERY), quiet=True)
    for name in ("classes.csv", "classes.png"):
        assert (cut / name).read_bytes() == (whole.folder / name).read_bytes(), name
    assert again.summary == whole.summary
    assert steps_of(again) == [6, 8, 10, 12]


def test_the_interval_comes_from_what_the_checkpoint_kept(root: Path, tmp_path: Path) -> None:
    """A checkpoint of a version that kept none is gone on from: the interval is of what is still evaluated."""
    whole = train(on_features(root, tmp_path / "run", **EVERY), quiet=True)
    before = rows_of(whole)
    for name in ("summary.json", "checkpoints/final.pt", "checkpoints/step_00000012.pt"):
        (whole.folder / name).unlink()
    file = whole.folder / "checkpoints" / "step_00000009.pt"
    state = load_checkpoint(file)
    # what the run would have kept, had all of the target once been taken for ants
    state["tallies"][-1] |= {"predicted": [48, 0, 0, 0], "sure": [48.0, 0, 0, 0], "mass": [48.0, 0, 0, 0]}
    save_checkpoint(file, state)
    moved = rows_of(train(on_features(root, whole.folder, train__resume="auto", **EVERY), quiet=True))
    assert (moved[0]["high"], moved[0]["share"]) == ("1.000000", before[0]["share"])
    for name in ("summary.json", "checkpoints/final.pt", "checkpoints/step_00000012.pt"):
        (whole.folder / name).unlink()
    del state["tallies"]
    save_checkpoint(file, state)
    old = train(on_features(root, whole.folder, train__resume="auto", **EVERY), quiet=True)
    assert steps_of(old) == [10, 12]
    assert [row["share"] for row in rows_of(old)] == [row["share"] for row in before]


def test_no_labels_and_odd_names(tmp_path: Path) -> None:
    names = ["=ant", "[red]bee[/]", "$cat", "dog"]
    tree = torch.load(torch_file(tmp_path / "made.pt"), weights_only=True)
    labels = {name: values.to(torch.int64) for name, values in tree["labels"].items()}
    labels["sketch"] = torch.full_like(labels["sketch"], -1)
    torch.save({**tree, "labels": labels, "classes": names}, tmp_path / "odd.pt")
    store = import_features(tmp_path / "odd.pt", tmp_path / "odd", name="odd", backbone="resnet50")
    console = Console(file=io.StringIO(), width=120)
    result = train(on_features(store.folder, tmp_path / "r", **EVERY), console=console)
    rows = rows_of(result)
    assert [row["class"] for row in rows] == ["'=ant", *names[1:]]
    assert "true_share" not in rows[0]
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1, abs=1e-5)
    assert result.summary.classes is not None
    assert result.summary.classes["total_variation"] is None
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "what sketch is made of, by the predictions for 48 images" in text
    assert "[red]bee[/]" in text
    assert "total variation" not in text


def test_many_seeds(root: Path, tmp_path: Path) -> None:
    """A file a seed, a line a seed, and the mean in the summary."""
    console = Console(file=io.StringIO(), width=120)
    result = train(on_features(root, tmp_path / "r", train__seeds="0,1"), console=console)
    parts = [json.loads((result.folder / f"seed-{seed}" / "summary.json").read_text())["classes"] for seed in (0, 1)]
    assert all((result.folder / f"seed-{seed}" / "classes.csv").is_file() for seed in (0, 1))
    assert result.summary.classes is not None
    mean = np.mean([part["total_variation"] for part in parts])
    assert result.summary.classes["total_variation"] == pytest.approx(mean)
    assert isinstance(console.file, io.StringIO)
    lines = [line for line in console.file.getvalue().splitlines() if "what sketch is made of" in line]
    assert len(lines) == 2
    assert all("total variation to the labels" in line for line in lines)
