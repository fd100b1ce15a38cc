"""Signals in the midst of things: answered at once, heeded soon, and what is said to be saved is."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fastget.commands.main import main
from fastget.common.errors import Interrupted, RunFailed
from fastget.data.check import files as check_files
from fastget.data.check.files import check
from fastget.data.decode import look_at_ends
from fastget.loading.stream import TooManyBadImages
from fastget.runs import checkpoint
from fastget.runs.checkpoint import load_checkpoint
from fastget.runs.sinks.display import Display
from fastget.training.engine import Engine
from fastget.training.train import train
from tests.features.support import on_features, small_store
from tests.pictures import write_domains
from tests.support import assert_same_end


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features, which train in no time. Not to be written to."""
    return small_store(tmp_path_factory.mktemp("features") / "small").folder


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stops."""
    return train(
        on_features(root, tmp_path_factory.mktemp("whole") / "run", train__select="entropy"), quiet=True
    ).folder


def ask(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def killed(self: Engine, *given: Any) -> None:
    raise KeyboardInterrupt


def ask_when_looking(patch: pytest.MonkeyPatch, wanted: str, at: int) -> None:
    """A signal after the first batch of the pass that is wanted, at a step."""
    steps: list[int] = []
    step, looking = Engine.train_step, Display.looking

    def count(self: Engine, *given: Any) -> None:
        steps.append(self.steps_done)
        step(self, *given)
        steps.append(self.steps_done)

    def look(self: Display, what: str, done: int, total: int) -> None:
        looking(self, what, done, total)
        if what == wanted and steps[-1] == at:
            ask()

    patch.setattr(Engine, "train_step", count)
    patch.setattr(Display, "looking", look)


@pytest.mark.parametrize(("what", "step"), [("evaluation", 6), ("evaluation", 12), ("the method's start", 4)])
def test_a_pass_over_the_target_is_left_and_made_up_for(
    root: Path, whole: Path, what: str, step: int, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"train__eval_batch_size": 8, "train__select": "entropy"}
    with pytest.MonkeyPatch.context() as patch:
        ask_when_looking(patch, what, step)
        with pytest.raises(Interrupted, match=rf"step {step} of 12; the run is saved. Go on with: --resume auto"):
            train(on_features(root, "run", **settings), quiet=True)
    said = capfd.readouterr().err
    assert f"fastget: SIGTERM: stopping after this batch of images; step {step} is saved then" in said
    state = load_checkpoint(max(Path("run/checkpoints").glob("step_*.pt")))
    assert (state["step"], "owed" in state) == (step, what == "evaluation")
    again = on_features(root, "run", train__resume="auto", **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "train_step", killed)  # after the evaluation that was owed, before the next checkpoint
        if step < 12:
            with pytest.raises(KeyboardInterrupt):
                train(again, quiet=True)
    train(again, quiet=True)
    assert_same_end(Path("run"), whole, "selected")


def test_a_second_signal_stops_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(self: Engine, *given: Any) -> None:
        ask()
        ask()

    monkeypatch.setattr(Engine, "train_step", twice)
    with pytest.raises(KeyboardInterrupt):
        train(on_features(root, "run"), quiet=True)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_nothing_is_said_to_be_saved_that_is_not(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal while the disk is full."""
    step = Engine.train_step

    def full(file: Path, state: dict[str, Any]) -> None:
        raise OSError(27, "File too large")

    def asked(self: Engine, *given: Any) -> None:
        step(self, *given)
        if self.steps_done == 7:
            monkeypatch.setattr(checkpoint, "save_checkpoint", full)
            ask()

    monkeypatch.setattr(Engine, "train_step", asked)
    kept = r"step_00000006\.pt"
    with pytest.raises(
        RunFailed, match=rf"SIGTERM after step 7 of 12, which could not be saved: File too large; .*{kept}"
    ):
        train(on_features(root, "run"), quiet=True)
    Path("run/checkpoints/step_00000006.pt").unlink()
    with pytest.raises(RunFailed, match="no checkpoint is on disk"):
        train(on_features(root, "run", train__resume="auto"), quiet=True)


@pytest.mark.parametrize("room", [True, False])
def test_what_is_on_disk_after_step_0(root: Path, room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(self: Engine, *given: Any) -> Any:
        raise TooManyBadImages("photo", [], 48, 0.01)
        yield

    def full(file: Path, state: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Engine, "steps", bad)
    if not room:
        monkeypatch.setattr(checkpoint, "save_checkpoint", full)
    said = "after step 0, which is saved" if room else "after step 0, which could not be saved"
    with pytest.raises(RunFailed, match=said):
        train(on_features(root, "run"), quiet=True)
    assert (Path("run/checkpoints/step_00000000.pt").exists()) == room


# --- before the first step -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_check_is_left_and_remembers(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_domains(tmp_path / "data", per_class=50)
    seen: list[str] = []

    def stop_after_a_while(file: str, *limit: int) -> Any:
        seen.append(file)
        if len(seen) == 200:
            time.sleep(0.5)  # the parts before this one come to the check's own thread
            ask(number)
        return look_at_ends(file, *limit)

    monkeypatch.setattr(check_files, "look_at_ends", stop_after_a_while)
    monkeypatch.setattr(check_files, "CHUNK", 10)
    code = main(["data", "check", "folder", "--root", str(images), "--quick", "--workers", "1"])
    assert code == 128 + number
    assert "those that are done are remembered" in " ".join(capsys.readouterr().err.split())
    files = [str(file) for file in sorted(images.rglob("*.*g"))]
    assert 0 < check(files, full=False).remembered < len(files) == 300


def test_the_look_at_the_images_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_domains(tmp_path / "data", per_class=4)

    def stop(file: str, *limit: int) -> Any:
        ask()
        return look_at_ends(file, *limit)

    monkeypatch.setattr(check_files, "look_at_ends", stop)
    given = ["--data", "folder", "--root", str(images), "--source", "photo", "--target", "sketch", "--out", "run"]
    assert main(["train", *given, "--set", "network.name=small", "network.weights=none"]) == 128 + signal.SIGTERM
    said = " ".join(capsys.readouterr().err.split())
    assert "while the images were looked at" in said
    assert "nothing else is saved yet" in said
    assert not Path("run").exists()
