"""The verdict of whole runs: in the terminal, the summary, the report and the card; the same when a run is resumed."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from fastget import methods
from fastget.commands.main import main
from fastget.features.imported import import_features
from fastget.methods.base import Method, Seen, Settings, Task, Term, Whole
from fastget.methods.get.method import GetMethod
from fastget.runs.summary import SeedSummary
from fastget.training.train import Result, train
from tests.features.support import CLASSES, on_features, small_store
from tests.support import cut_back

TOO_FEW = "too few to tell which classes it has. The prior is left uniform"


class OneClass(Method):
    """Takes everything for an ant."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Settings):
        """No field."""

    def start(self, whole: Whole) -> None:
        assert whole.logits.shape[1] == len(CLASSES)  # looked at before it is spoiled
        with torch.no_grad():
            whole.classifier.bias[0] += 1e4

    def forward(self, seen: Seen) -> Term:
        return Term(0 * seen.logits.sum())


@pytest.fixture
def one_class(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(methods, "_ENTRIES", dict(methods._ENTRIES))
    methods.register("one-class", OneClass)
    return "one-class"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of 48 rows, whose classes are easily told. Not to be written to."""
    return small_store(tmp_path_factory.mktemp("features") / "small").folder


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Likewise, but each row is drawn by chance."""
    place = tmp_path_factory.mktemp("noise")
    labels = torch.arange(4).repeat_interleave(12).to(torch.uint8)
    feats = {
        name: torch.randn(48, 64, generator=torch.Generator().manual_seed(i))
        for i, name in enumerate(("photo", "sketch"))
    }
    torch.save({"feats": feats, "labels": dict.fromkeys(feats, labels), "classes": list(CLASSES)}, place / "f.pt")
    return import_features(place / "f.pt", place / "store", name="noise", backbone="resnet50").folder


def run(root: Path, out: Path, **settings: Any) -> tuple[Result, str]:
    """And what it printed."""
    said = io.StringIO()
    return train(on_features(root, out, **settings), console=Console(file=said, width=120)), said.getvalue()


def names(result: Result) -> list[str]:
    return [one["name"] for one in result.summary.verdict]


def test_low_agreement(noise: Path, tmp_path: Path) -> None:
    result, text = run(noise, tmp_path / "r")
    summary = result.summary
    assert isinstance(summary, SeedSummary)
    assert names(result)[0] == "low_agreement"
    assert summary.agreement is not None
    assert (summary.agreement["trust"], summary.agreement["kappa"] < 0.4) == (0, True)
    assert json.loads((result.folder / "summary.json").read_text())["verdict"] == summary.verdict
    lines = [line for line in text.splitlines() if TOO_FEW in line]
    assert [line.partition(":")[0] for line in lines] == ["warning", "verdict"]
    start, end = (text.index(line) for line in lines)  # as soon as it is known, and before the table of results
    assert start < text.index("step     12/12") < end < text.index("final model on")
    assert not (result.folder / "classes.csv").exists()
    assert not (result.folder / "classes.png").exists()
    assert "what sketch is made of is not told: the two labellers agree too little" in text
    assert "probably absent" not in text
    assert summary.classes is not None
    assert summary.classes["probably_absent"] is None

    assert main(["report", str(result.folder), "--projection", "pca"]) == 0
    page = (result.folder / "report.html").read_text()
    assert TOO_FEW in page[page.index('<section id="overview">') : page.index('<section id="training">')]
    assert "Which classes sketch has is not told: the two labellers agree too little." in page
    assert f"(kappa {summary.agreement['kappa']:.2f}): trust 0.00" in page  # beside the prior
    assert '"share":' not in page.partition('"id":"classes"')[2].partition('"id":')[0].replace('"share":null', "")
    assert main(["report", str(result.folder), "--card"]) == 0
    card = (result.folder / "README.md").read_text()
    assert TOO_FEW in card
    assert "- Which classes sketch has is not told: the two labellers agree too little." in card


def test_nothing_is_wrong(root: Path, tmp_path: Path) -> None:
    result, text = run(root, tmp_path / "r")
    assert result.summary.verdict == []
    assert (result.folder / "classes.csv").is_file()
    assert "verdict" not in text
    assert "probably absent, 0 of 4 classes" in text
    assert main(["report", str(result.folder), "--card"]) == 0
    assert "Verdict" not in (result.folder / "README.md").read_text()


def test_where_nobody_looked_there_is_no_agreement(noise: Path, tmp_path: Path) -> None:
    result, _ = run(noise, tmp_path / "r", method__recipe="paper")
    assert isinstance(result.summary, SeedSummary)
    assert result.summary.agreement is None
    assert "low_agreement" not in names(result)
    assert (result.folder / "classes.csv").is_file()


def test_collapse(one_class: str, root: Path, tmp_path: Path) -> None:
    """By any method. One answer is at chance, and less than the warm-up had."""
    result, text = run(root, tmp_path / "r", method__name=one_class)
    assert names(result) == ["collapse", "below_warm_up", "at_chance"]
    assert result.summary.verdict[0]["numbers"]["classes_in_effect"] == 1
    assert result.summary.verdict[0]["numbers"]["at_end_of_warm_up"] > 2
    assert text.index("verdict: The final predictions cover 1.0 of 4 classes") < text.index("final model on")
    assert "absent cannot be known" in text
    assert "probably absent" not in text
    head = (result.folder / "classes.csv").read_text().splitlines()[0]
    assert head == "class,share,low,high,predicted,true_share"
    assert main(["report", str(result.folder), "--projection", "pca"]) == 0
    page = (result.folder / "report.html").read_text()
    assert "Which classes are absent cannot be known: the predictions have collapsed." in page
    assert '"absent":true' not in page


def test_a_partial_target_is_no_collapse_where_it_is_declared(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial: dict[str, Any] = {"data__setting": "pda", "data__pda_classes": 1}
    for method in ("get", "source-only"):
        declared, text = run(root, tmp_path / method, method__name=method, **partial)
        assert "collapse" not in names(declared)
    assert "probably absent, 3 of 4 classes" in text  # get's labellers both say one class, which says nothing
    config = on_features(root, tmp_path / "x", get__partial="yes")
    assert GetMethod(config.own, Task(4, 64, 48)).partial
    monkeypatch.setattr(Method, "partial", False)
    for method in ("get", "source-only"):
        assert "collapse" in names(run(root, tmp_path / f"{method}-2", method__name=method, **partial)[0])


@pytest.mark.parametrize("left", [3, 9])
def test_resumed_it_is_the_same(left: int, one_class: str, noise: Path, tmp_path: Path) -> None:
    """From the warm-up, and from after it, when the start is not made again."""
    for method in ("get", one_class):
        often = {"method__name": method, "train__checkpoint_every": 3, "train__keep_checkpoints": 4}
        whole, _ = run(noise, tmp_path / method, **often)
        assert whole.summary.verdict
        cut_back(whole.folder, left)
        again, text = run(noise, whole.folder, **often, train__resume="auto")
        assert again.summary == whole.summary
        assert "verdict: " in text
        done, text = run(noise, whole.folder, **often, train__resume="auto")  # nothing is left to do
        assert done.summary.verdict == whole.summary.verdict
        assert text.count("verdict: ") == len(whole.summary.verdict)


def test_many_seeds(noise: Path, tmp_path: Path) -> None:
    result, text = run(noise, tmp_path / "r", train__seeds="0,1")
    parts = [json.loads((result.folder / f"seed-{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    assert result.summary.verdict == [{"seed": part["seed"], **one} for part in parts for one in part["verdict"]]
    for seed in (0, 1):
        assert text.count(f"verdict: seed {seed}: The two labellers agree on") == 1
    assert result.summary.classes is not None
    assert result.summary.classes["untold"]
    assert main(["report", str(result.folder), "--projection", "pca", "--out", str(tmp_path / "r.html")]) == 0
    assert "seed 1: The two labellers agree on" in (tmp_path / "r.html").read_text()
