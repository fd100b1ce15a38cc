"""Bad files and a run: left out at its start, replaced in its middle, and never the end of it unless they are many."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget.commands.main import main
from fastget.config import make_config
from fastget.data.digits import digits_root
from fastget.data.domains import load_domains
from fastget.evaluation.score import Evaluation
from fastget.runs.checkpoint import load_checkpoint
from fastget.training.engine import Engine
from fastget.training.train import train
from tests.support import tiny

SETTINGS = ["train.max_steps=60", "train.batch_size=32", "train.warmup_steps=5", "train.eval_every=60",
            "train.checkpoint_every=10", "train.tensorboard=false", "optim.lr=0.01"]  # fmt: skip


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A copy of the digits that may be damaged."""
    return Path(shutil.copytree(digits_root(), tmp_path / "digits"))


def arguments(root: Path, *more: str) -> list[str]:
    return ["train", "--root", str(root), "--out", "run", "--set", *SETTINGS, *more]


def test_bad_files_at_the_start(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, empty = digits / "fonts" / "3" / "0003.png", digits / "handwritten" / "0" / "0000.png"
    text.write_text("not an image")
    empty.write_bytes(b"")
    assert main(arguments(digits)) == 2
    shown = capsys.readouterr().err.replace("\n", "")
    assert str(text) in shown
    assert str(empty) in shown
    assert main([*arguments(digits), "--bad-images", "skip"]) == 0
    shown = capsys.readouterr().out.replace("\n", "")
    assert "left out 2 bad images" in shown
    summary = Path("run/summary.json").read_text()
    assert str(text) in summary
    assert len(Path("run/predictions.csv").read_text().splitlines()) == 1 + 1796
    assert str(empty) in Path("run/split.json").read_text()


@pytest.mark.parametrize("loader", ["torchvision", "dali"])
def test_a_file_that_vanishes_does_not_end_the_run(digits: Path, loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if loader == "dali":
        pytest.importorskip("nvidia.dali")
    train_step = Engine.train_step
    gone: list[Path] = []

    def vanish(self: Engine, *given: Any) -> None:
        if self.steps_done == 5:  # a file that step 30 will want
            stream = self.loaders.source.stream
            gone.append(Path(stream.images.file(int(stream.sampler(30).index[0]))))
            gone[0].unlink()
        train_step(self, *given)

    monkeypatch.setattr(Engine, "train_step", vanish)
    given = dict(pair.split("=") for pair in SETTINGS)
    settings = {**given, "data.root": str(digits), "data.loader": loader, "train.out": "run"}
    summary = train(make_config(settings), quiet=True).summary
    assert summary["steps"] == 60
    assert [(bad["path"], bad["step"]) for bad in summary["turned_bad"]] == [(str(gone[0]), 30)]


def test_a_target_image_that_vanishes_is_counted_where_it_is_not_scored(
    digits: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = Engine.evaluate
    gone = sorted((digits / "handwritten" / "3").iterdir())[0]

    def vanish(self: Engine, *given: Any) -> Evaluation:
        gone.unlink(missing_ok=True)
        return evaluate(self, *given)

    monkeypatch.setattr(Engine, "evaluate", vanish)
    given = dict(pair.split("=") for pair in SETTINGS)
    settings = {**given, "data.root": str(digits), "train.out": "run", "train.max_steps": 4, "train.warmup_steps": 4}
    settings |= {"method.name": "source-only", "train.eval_every": 2, "train.batch_size": 8}
    summary = train(make_config(settings)).summary
    assert [(bad["path"], bad["step"]) for bad in summary["turned_bad"]] == [(str(gone), 2)]  # once
    assert (summary["scored"], summary["images"]["target"]) == (1796, 1797)
    shown = "".join(capsys.readouterr().out.split())
    assert "".join(f"{gone} does not exist; it is not scored".split()) in shown
    assert "1,796of1,797targetimages" in shown


def test_too_many_bad_files_stop_the_run_with_a_checkpoint(
    digits: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_step = Engine.train_step

    def vanish(self: Engine, *given: Any) -> None:
        if self.steps_done == 12:
            shutil.rmtree(digits / "fonts")
        train_step(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "train_step", vanish)
        assert main(arguments(digits, "data.loader=torchvision")) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert "cannot be read any more" in shown
    newest = max(Path("run/checkpoints").glob("step_*.pt"))
    step = load_checkpoint(newest)["step"]
    assert step > 12
    assert f"after step {step}, which is saved" in shown
    shutil.copytree(digits_root() / "fonts", digits / "fonts")
    assert main([*arguments(digits, "data.loader=torchvision"), "--resume", "auto"]) == 0


# --- the settings in training --------------------------------------------------------------------


def test_ssda_trains_on_three_streams() -> None:
    config = tiny("ssda", data__setting="ssda", data__shots=3, train__batch_size=12)
    engine = Engine(config, 0, load_domains(config.data), torch.device("cpu"))
    passes: list[int] = []
    engine.network.backbone.register_forward_hook(lambda m, i, o: passes.append(len(i[0])))
    batches = engine.steps()
    first = next(batches)
    assert first.target is None
    assert first.shots is not None
    engine.train_step(first)
    assert passes == [12, 4]  # the warm-up: source, labelled target
    while engine.steps_done < 4:
        engine.train_step(next(batches))
    batch = next(batches)
    assert batch.target is not None
    assert batch.shots is not None
    engine.train_step(batch)
    passes.clear()
    engine.train_step(next(batches))
    assert passes == [12, 12]  # source; 8 unlabelled and 4 labelled of the target in one pass
    batches.close()


@pytest.mark.parametrize("options", [{"setting": "ssda"}, {"setting": "pda"}, {"imbalanced": True}])
def test_settings_train_and_are_recorded(options: dict[str, object]) -> None:
    result = train(tiny("s", **{f"data__{key}": value for key, value in options.items()}), quiet=True)
    assert result.summary["steps"] == 12
    images = result.summary["images"]
    assert images["target"] < 1797
    assert ("labelled_target" in images) == (options.get("setting") == "ssda")
    assert len((result.folder / "predictions.csv").read_text().splitlines()) == 1 + images["target"]
    assert len((result.folder / "split.json").read_text()) > 10
