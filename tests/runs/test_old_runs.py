"""A run folder made by fastget 0.1.0 (tests/data/run-0.1.0) still resumes, predicts, evaluates and exports."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from fastget.commands.main import main
from fastget.config import make_config
from fastget.data.digits import digits_root
from fastget.runs.checkpoint import BadCheckpoint, load_checkpoint, save_checkpoint
from fastget.runs.summary import SeedSummary, read_summary
from fastget.runs.upgrade import FORMAT, upgrade
from fastget.serving.predictor import load_predictor
from fastget.training.train import train
from tests.support import metrics

OLD = Path(__file__).resolve().parents[1] / "data" / "run-0.1.0"
STEPS = "checkpoints/step_00000006.pt"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def test_it_is_of_the_old_format() -> None:
    state = torch.load(OLD / "checkpoints" / "final.pt", weights_only=True)
    assert state["fastget_format"] == 1
    assert {"get.mu", "get.pi", "get.mu_f"} <= set(state["model"])


def test_it_goes_on(old: Path) -> None:
    """From its checkpoint of step 6 to its end: the same losses, up to the rounding of another machine."""
    before = metrics(old)
    for name in ("summary.json", "checkpoints/final.pt"):
        (old / name).unlink()
    config = make_config({"train.out": str(old), "train.resume": "auto"}, file=old / "config.yaml")
    result = train(config, quiet=True)
    after = metrics(old)
    assert [line["step"] for line in after] == [line["step"] for line in before]
    for one, other in zip(before, after, strict=True):
        for name in ("loss", "loss_source", "loss_g", "loss_f", "entropy"):
            if name in one:
                assert other[name] == pytest.approx(one[name], rel=1e-3), (one["step"], name)
    assert result.summary.steps == 12
    mine, theirs = (load_checkpoint(f / "checkpoints" / "final.pt")["model"] for f in (old, OLD))
    assert set(mine) - {"method.get.trust", "method.get.agreement"} == set(theirs)  # since 0.2
    for name in ("method.get.mu", "method.get.pi", "network.classifier.weight"):
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-2, atol=1e-3)


def test_a_finished_one_is_known_as_such(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config({"train.out": str(old), "train.resume": "auto"}, file=old / "config.yaml")
    assert train(config).summary == read_summary(OLD)
    assert "already done" in capsys.readouterr().out


def test_its_summary_is_read() -> None:
    summary = read_summary(OLD)
    assert isinstance(summary, SeedSummary)
    content = json.loads((OLD / "summary.json").read_text())
    assert (summary.method, summary.accuracy, summary.seed) == (content["method"], content["accuracy"], 0)
    # since then
    added: dict[str, object] = {
        "base": "plain",
        "recipe": "default",
        "settings": {},
        "validation": None,
        "classes": None,
        "backbone": {},
        "scored": None,
        "verdict": [],
        "agreement": None,
    }
    assert summary.to_dict() == content | added


@pytest.mark.parametrize("name", ["checkpoints/final.pt", STEPS, ""])
def test_it_predicts(name: str) -> None:
    root = digits_root()
    predictor = load_predictor(OLD / name if name else OLD)
    rows = list(predictor.predict([root / "handwritten" / "0" / "0000.png"]))
    assert rows[0].label in predictor.classes
    expected = (OLD / "predictions.csv").read_text().splitlines()[1].split(",")
    if name != STEPS:
        assert rows[0].label == expected[2]
        assert rows[0].confidence == pytest.approx(float(expected[3]), abs=1e-3)


def test_eval_and_export(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--checkpoint", str(old), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] == pytest.approx(json.loads((OLD / "summary.json").read_text())["accuracy"], abs=2e-3)
    assert main(["export", "--checkpoint", str(old), "--out", str(old / "m.pt2")]) == 0
    assert (old / "m.pt2").is_file()


def test_one_of_a_later_version_is_refused_in_a_sentence(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = load_checkpoint(old / STEPS)
    later = torch.load(old / STEPS, weights_only=True) | {"fastget_format": FORMAT + 1}
    torch.save(later, old / STEPS)
    with pytest.raises(BadCheckpoint, match=rf"of format {FORMAT + 1}.* reads up to {FORMAT}: use a later one"):
        load_checkpoint(old / STEPS)
    assert main(["predict", "--checkpoint", str(old / STEPS), str(digits_root() / "fonts")]) == 2
    assert "use a later one" in " ".join(capsys.readouterr().err.split())
    save_checkpoint(old / STEPS, {k: v for k, v in state.items() if k != "fastget_format"})
    assert load_checkpoint(old / STEPS)["started"]


@pytest.mark.parametrize("found", [None, 0, "1"])
def test_what_is_no_checkpoint_of_ours(found: object) -> None:
    with pytest.raises(ValueError, match="not a checkpoint of fastget"):
        upgrade({"fastget_format": found})
