"""Killed by SIGKILL at random moments, also while a checkpoint is written, and resumed: the same end, to the bit."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fastget.runs.checkpoint import load_checkpoint
from tests.support import metrics

SETTINGS = [
    "train.batch_size=16", "optim.lr=0.01", "train.warmup_steps=20", "train.log_every=7", "train.eval_every=30",
    "train.checkpoint_every=5", "train.keep_checkpoints=2", "train.tensorboard=false",
]  # fmt: skip


def command(out: Path, loader: str, steps: int) -> list[str]:
    settings = [*SETTINGS, f"train.max_steps={steps}", f"data.loader={loader}"]
    return [sys.executable, "-m", "fastget", "train", "--out", str(out), "--resume", "auto", "--set", *settings]


def wait_for_progress(out: Path, process: subprocess.Popen[bytes], before: str) -> None:
    """Until the run has written a checkpoint of its own: the interpreter's start is no moment of the run."""
    while process.poll() is None and newest(out) == before:
        time.sleep(0.02)


def seconds_between_checkpoints(out: Path) -> float:
    """Of the last two: what a moment of the run is on this machine."""
    last, before = sorted((f.stat().st_mtime for f in (out / "checkpoints").glob("step_*.pt")), reverse=True)[:2]
    return last - before


def newest(out: Path) -> str:
    return max((f.name for f in (out / "checkpoints").glob("step_*.pt")), default="")


def kill_and_resume(tmp_path: Path, loader: str, kills: int, steps: int) -> None:
    subprocess.run(command(tmp_path / "whole", loader, steps), check=True, capture_output=True)
    killed = tmp_path / "killed"
    moment = 3 * seconds_between_checkpoints(tmp_path / "whole")
    chance = random.Random(loader)
    done = 0
    while done < kills:
        process = subprocess.Popen(command(killed, loader, steps), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_progress(killed, process, newest(killed))
        time.sleep(chance.uniform(0, moment))
        if process.poll() is not None:
            break  # it reached the end first
        process.send_signal(signal.SIGKILL)
        process.wait()
        done += 1
    assert done > 0
    subprocess.run(command(killed, loader, steps), check=True, capture_output=True)
    assert metrics(killed) == metrics(tmp_path / "whole")
    one, other = (load_checkpoint(d / "checkpoints" / "final.pt") for d in (tmp_path / "whole", killed))
    for part in ("model", "totals"):
        assert all(torch.equal(one[part][name], other[part][name]) for name in one[part])
    for a, b in zip(one["optimizer"]["state"].values(), other["optimizer"]["state"].values(), strict=True):
        assert torch.equal(a["momentum_buffer"], b["momentum_buffer"])
    tables = [{file.name: file.read_bytes() for file in d.glob("*.csv")} for d in (tmp_path / "whole", killed)]
    assert "predictions.csv" in tables[0]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("loader", ["dali", "torchvision"])  # as tests/fuzz does
def test_killed_and_resumed(tmp_path: Path, loader: str) -> None:
    if loader == "dali":
        pytest.importorskip("nvidia.dali")
    kill_and_resume(tmp_path, loader, kills=1, steps=40)


@pytest.mark.parametrize("loader", ["torchvision", "dali"])
def test_killed_twenty_times(tmp_path: Path, loader: str) -> None:
    if loader == "dali":
        pytest.importorskip("nvidia.dali")
    kill_and_resume(tmp_path, loader, kills=20, steps=1000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(command(out, "torchvision", 2000), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for_progress(out, process, "")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    text = " ".join(said.decode().split())
    assert f"stopped by {number.name}" in text
    assert "--resume auto" in text
    assert "Traceback" not in text
    state = load_checkpoint(out / "checkpoints" / newest(out))
    assert f"after step {state['step']} of 2000" in text
