"""The folder of a run: one writer, its own data, and a place that is found again."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from torch import nn

from tests.commandline import (
    Said,
    on_features,
    on_folders,
    say,
    steps_of,
    watching,
    while_a_network_is_built,
)
from tests.forks import as_ranks, elsewhere
from tests.pictures import write_domains

LONG = "train.max_steps=12"


def stopped_at(step: int, command: list[str]) -> Said:
    """A run that SIGTERM meets in a step."""
    seen: list[int] = []

    def count(module: nn.Module, images: int) -> None:
        if module.training:
            seen.append(images)
            if len(seen) == step:
                os.kill(os.getpid(), signal.SIGTERM)

    with watching(count):
        done = say(*command)
    assert done.code == 128 + signal.SIGTERM, done.words
    return done


def test_a_second_process_in_the_folder_of_a_run_is_refused(stored: Path) -> None:
    second: list[Said] = []

    def start(module: nn.Module, images: int) -> None:
        if module.training and not second and Path("run/metrics.jsonl").read_text().count("\n") >= 3:
            second.append(elsewhere(*on_features(stored, LONG, options=("--resume", "auto"))))

    with watching(start):
        first = say(*on_features(stored, LONG))
    steps = steps_of(Path("run"))
    assert steps == sorted(set(steps)), f"both wrote to metrics.jsonl: {steps}"
    assert (first.code, second[0].code) == (0, 2), second[0].words
    assert f"process {os.getpid()}" in second[0].words  # its owner is named


def test_two_runs_that_start_together_have_a_folder_each(stored: Path) -> None:
    """The second comes to its end while the first is still being set up."""
    rates = {"optim.lr=0.02": 0.02, "optim.lr=0.03": 0.03}
    second: list[Said] = []
    commands = [on_features(stored, rate, out=None) for rate in rates]
    with while_a_network_is_built(lambda: second.append(elsewhere(*commands[1]))):
        first = say(*commands[0])
    assert (first.code, second[0].code) == (0, 0), second[0].words
    files = sorted(Path("runs").rglob("config.yaml"))
    found = sorted(yaml.safe_load(file.read_text())["optim"]["lr"] for file in files)
    assert found == sorted(rates.values()), f"two runs, and the folders {[str(file.parent) for file in files]}"


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    data = write_domains(tmp_path / "data", per_class=4)
    stopped_at(3, on_folders(data))
    (data / "sketch" / "ant" / "000.png").rename(data / "sketch" / "bee" / "more.png")
    again = say(*on_folders(data, options=("--resume", "auto")))
    assert again.code == 2, "it went on with other images than it was started on"
    assert "other data" in again.words
    assert "sketch" in again.words


def test_a_run_on_a_relative_root_is_evaluated_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_domains(tmp_path / "small" / "data", per_class=2)
    assert say(*on_folders("small/data", "train.max_steps=2", "train.warmup_steps=1")).code == 0
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    found = say("eval", "--checkpoint", "../run", "--json")
    assert found.code == 0, found.words
    assert found.json["images"] == 6


# --- ranks -------------------------------------------------------------------------------------------


def test_a_rank_that_sees_another_folder_is_named(stored: Path, tmp_path: Path) -> None:
    """As on two nodes where `run` is a disk of their own: rank 1 finds no checkpoint there."""
    disks = [tmp_path / name for name in ("disk0", "disk1")]
    for disk in disks:
        disk.mkdir()
    plain = ("train.device=cpu", "train.threads=1")
    stopped_at(3, on_features(stored, *plain))
    shutil.move("run", disks[0] / "run")
    codes, said = as_ranks(2, *on_features(stored, *plain, options=("--resume", "auto")), folders=disks)
    assert "rank 1 on" in said.words, f"rank 1 began at another step, and nothing names it: {codes}"
    assert "all ranks need the run's folder" in said.words
    assert codes == [2, 2]
