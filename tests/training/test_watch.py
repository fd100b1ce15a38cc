"""What a run keeps for its report: written beside the run, and without a trace in it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fastget.methods.base import Seen
from fastget.methods.get.method import GetMethod
from fastget.training.train import train
from tests.support import assert_same_end, checkpoint, cut_back, tiny


def labels_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watch") / "run"
    return train(tiny(folder, train__watch=100, train__checkpoint_every=4, train__eval_every=4), quiet=True).folder


def test_features_before_and_after(run: Path) -> None:
    before, after = (load_file(run / f"features_{which}.safetensors") for which in ("before", "after"))
    assert before["features"].shape == after["features"].shape == (100, 256)
    assert torch.equal(before["place"], after["place"])
    assert torch.equal(before["labels"], after["labels"])
    assert not torch.equal(before["features"], after["features"])
    lines = (run / "predictions.csv").read_text().splitlines()[1:]
    for place, prediction, label in zip(after["place"], after["predictions"], after["labels"], strict=True):
        _, truth, said, _ = lines[int(place)].split(",")
        assert (str(int(label)), str(int(prediction))) == (truth, said)


def test_labels_at_every_evaluation(run: Path) -> None:
    lines = labels_of(run)
    assert [line["step"] for line in lines] == [4, 8, 12]
    assert list(lines[0]["quality"]) == ["network"]  # the method has not begun
    assert lines[0]["shares"] == {}
    for line in lines[1:]:
        assert list(line["quality"]) == ["network", "y_M", "Q_g", "Q_f"]
        assert sum(line["shares"]["prior"]) == pytest.approx(1, abs=1e-4)
    state = checkpoint(run)["model"]
    assert lines[-1]["shares"]["prior"] == pytest.approx(state["method.get.pi"].tolist(), abs=1e-6)


def test_the_run_is_the_same_without_it(run: Path, tmp_path: Path) -> None:
    other = train(tiny("other", train__watch=0, train__checkpoint_every=4, train__eval_every=4), quiet=True).folder
    assert not list(other.glob("features_*"))
    assert_same_end(run, other)
    assert (run / "predictions.csv").read_bytes() == (other / "predictions.csv").read_bytes()
    assert torch.equal(checkpoint(run)["rng"], checkpoint(other)["rng"])


def test_a_resumed_run_has_each_line_once(run: Path, tmp_path: Path) -> None:
    """As after a kill between steps 8 and 12."""
    settings: dict[str, Any] = {"train__watch": 100, "train__checkpoint_every": 4, "train__eval_every": 4}
    folder = cut_back(Path(shutil.copytree(run, "again")), 8)
    (folder / "features_after.safetensors").unlink()
    train(tiny("again", **settings, train__resume="auto"), quiet=True)
    assert labels_of(folder) == labels_of(run)
    for which in ("before", "after"):
        a, b = (load_file(place / f"features_{which}.safetensors") for place in (run, folder))
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_no_label_of_the_target_is_shown_to_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Seen] = []
    own = GetMethod.pseudo_labels

    def spy(self: GetMethod, given: Seen) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        seen.append(given)
        return own(self, given)

    monkeypatch.setattr(GetMethod, "pseudo_labels", spy)
    train(tiny("run", train__watch=50), quiet=True)
    assert [len(given.features) for given in seen] == [50, 50]
    assert set(vars(seen[0])) == {"features", "logits", "index", "classifier", "progress", "source", "shots"}
    assert seen[0].source is None
    assert seen[0].shots is None
