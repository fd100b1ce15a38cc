"""What is shown while a run runs: evaluations as a phase of their own, counted in the time that is left."""

import io
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fastget.common.signals import noted
from fastget.config import make_config
from fastget.evaluation.score import score
from fastget.networks.preprocessing import filled
from fastget.runs.sinks.display import Display
from fastget.training.build import eval_batch_size
from fastget.training.clock import Clock
from fastget.training.profiling import STEPS, WAIT, Profile


def test_an_evaluation_is_a_phase_of_its_own() -> None:
    shown = Display("get, seed 0", 60, Console(file=io.StringIO(), force_terminal=True, width=100))
    bar, phase = (shown.progress.tasks[shown.progress.task_ids.index(task)] for task in (shown.task, shown.phase))
    assert not phase.visible
    shown.stepped(6, 3725)
    assert (bar.completed, bar.fields["left"]) == (6, "ETA 1:02:05")
    shown.looking("evaluation", 96, 3929)
    assert (phase.visible, phase.completed, phase.total) == (True, 96, 3929)
    shown.looking("evaluation", 3929, 3929)
    assert not phase.visible


def test_a_log_tells_of_a_long_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    out, now = io.StringIO(), 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    shown = Display("get, seed 0", 60, Console(file=out, width=100))
    shown.time_left(125)
    for done in range(0, 4000, 100):
        now += 4
        shown.looking("evaluation", done, 4000)
    lines = [f"  evaluation: {done:,} of 4,000 images   ETA 0:02:05" for done in range(700, 4000, 800)]
    assert out.getvalue().splitlines() == lines


def test_a_log_tells_of_long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where evaluations are rare too; of a run of days in some hundred lines."""
    out, now = io.StringIO(), 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    shown = Display("get, seed 0", 60_000, Console(file=out, width=100))
    for step in range(1, 60_001):
        now += 4
        shown.stepped(step, 4 * (60_000 - step))
    lines = out.getvalue().splitlines()
    assert lines[0] == "  step      8/60000   ETA 2 days, 18:39:28"
    assert 100 < len(lines) < 400


def test_a_target_without_labels_is_evaluated_aloud() -> None:
    out = io.StringIO()
    shown = Display("get, seed 0", 60, Console(file=out, width=100))
    nothing = torch.zeros(2, dtype=torch.int64)
    shown.evaluated(6, score(nothing, nothing, torch.ones(2), nothing - 1, 3, {"entropy": 0.25}))
    assert out.getvalue() == "  step      6/60   mean entropy 0.250, no labels to compare with\n"


def test_the_answer_to_a_signal_outlives_the_next_drawing(capfd: pytest.CaptureFixture[str]) -> None:
    """A line written past the bar was drawn over a quarter of a second later, and tore the bar."""
    out = io.StringIO()
    with Display("get, seed 0", 60, Console(file=out, force_terminal=True, width=100)) as shown:
        with noted(lambda: "stopping after this step", say=shown.answer) as asked:
            os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [signal.SIGTERM]
        for _ in range(2):
            shown.live.refresh()
            last = out.getvalue().rpartition("get, seed 0")[2]
            assert "fastget: SIGTERM: stopping after this step" in last
    assert capfd.readouterr().err == ""
    Display("get, seed 0", 60, Console(file=out, width=100)).answer("a log has lines")
    assert capfd.readouterr().err == "fastget: a log has lines\n"


def test_the_time_that_is_left_counts_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    clock = Clock()
    now, clock.steps, clock.images = 30.0, 10, 300
    assert clock.left(steps=50, images=1800) == 50 * 3 + 1800 * 30 / 300 / 3  # a guess
    with clock.evaluating():
        now, clock.looked = now + 40, 450  # half of it
        assert clock.left(steps=50, images=1350) == 50 * 3 + 1350 * 40 / 450
        now, clock.looked = now + 60, 900
    assert clock.left(steps=50, images=1800) == 50 * 3 + 2 * 100
    assert clock.read()["step_ms"] == 3000


def test_the_batch_of_an_evaluation_follows_that_of_training() -> None:
    def size(batch: int, crop: int, **more: int) -> int:
        fields = {f"train.{name}": value for name, value in more.items()}
        given = {"train.batch_size": batch, "data.resize": 256, "data.crop": crop, **fields}
        return eval_batch_size(filled(make_config(given)))

    assert (size(36, 224), size(12, 224), size(1, 224)) == (256, 96, 8)
    assert size(12, 28) == 256  # small images take no memory
    assert size(12, 224, eval_batch_size=33) == 33


def test_the_bar_moves_with_every_step() -> None:
    """And is drawn a few times a second at most: a step moves it in memory, a thread of the terminal's draws it."""
    out = io.StringIO()
    with Display("get, seed 0", 60, Console(file=out, force_terminal=True, width=100)) as shown:
        bar = shown.progress.tasks[0]
        for step in range(1, 50):
            shown.stepped(step, 60 - step)
            assert bar.completed == step
        drawn = out.getvalue().count("get, seed 0")
        shown.live.refresh()
        assert "49/60" in out.getvalue()
    assert drawn < 20
    assert shown.live.refresh_per_second <= 10


def test_what_the_tracer_says_goes_above_the_bar(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its library writes to the terminal itself."""
    out = io.StringIO()
    profile = Profile(tmp_path / "trace.json", torch.device("cpu"), Console(file=out, width=100))
    with profile._heard():
        os.write(2, b"USDT:2026 profiler_start\nERROR: gpuGetDeviceCount failed with code 35\nWARN: a buffer is full\n")
    assert out.getvalue() == "WARN: a buffer is full\n"
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"
    for _ in range(WAIT + STEPS):
        profile.step()
    assert (tmp_path / "trace.json").exists()
    assert capfd.readouterr().err == ""
