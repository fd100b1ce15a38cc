"""A study's runs by submitit: its local executor stands for SLURM."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastget.commands.main import main
from fastget.studies import slurm
from fastget.studies.jobs import Job, Slot
from fastget.studies.slurm import SlurmPool, Submitted, Training, executor_of, parse_options
from tests.studies.reproduce.support import write_tree
from tests.studies.support import stand_in


def a_job(folder: Path) -> Job:
    from fastget.config import make_config

    return Job(folder=folder, settings={"method.name": "get"}, setting="uda", seed=0, config=make_config())


def test_a_table_by_submitit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(Path("data"), "visda2017", per_class=1)
    started = stand_in(monkeypatch, failing="bnm")
    words = ["reproduce", "visda2017-uda", "--root", "data", "--methods", "bnm,get", "--seeds", "0", "--out", "r",
             "--slurm", "cluster=local", "minutes=5"]  # fmt: skip
    assert main(words) == 1
    with Path("r/results.csv").open(newline="") as stream:
        rows = {row["method"]: row for row in csv.DictReader(stream)}
    assert (rows["get"]["status"], rows["get"]["accuracy"]) == ("done", "0.9")
    assert (rows["bnm"]["status"], rows["bnm"]["reason"]) == ("failed", "RuntimeError: no luck")
    assert len(list(Path("r").rglob("*.slurm"))) == 3  # an id beside each run, and submitit's own folder
    assert "2 jobs, 2 at a time" in capsys.readouterr().out
    # what is done is not submitted again
    assert main(words) == 1
    assert [Path(folder).parent.name for folder in started] == ["bnm", "get", "bnm"]


def test_a_job_that_is_in_slurms_hands_is_taken_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Queue:
        cluster, job_id = "slurm", "17"

        def submit(self, what: Training) -> Any:
            submitted.append(what)
            return self

    class Known:
        def __init__(self, folder: Path, job_id: str) -> None:
            self.job_id = job_id

        def done(self, force_check: bool = False) -> bool:
            return ended

    submitted: list[Training] = []
    ended = False
    monkeypatch.setattr(slurm, "executor_of", lambda options, folder: Queue())
    monkeypatch.setattr("submitit.SlurmJob", Known)
    job = a_job(tmp_path / "seed-0")
    for _ in range(2):  # the second is a study that was killed, and is called again
        handle = SlurmPool([job], tmp_path, {}, None, None)._start(job, Slot({}, {}))
        assert isinstance(handle, Submitted)
        assert handle.job.job_id == "17"
        assert len(submitted) == 1
    ended = True  # and left no summary: it is tried again
    SlurmPool([job], tmp_path, {}, None, None)._start(job, Slot({}, {}))
    assert len(submitted) == 2
    assert submitted[0].words[1:4] == ["-m", "fastget", "train"]
    assert "train.resume=auto" in submitted[0].words


def test_before_its_time_is_up_a_run_saves_and_is_submitted_again(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); print('on', flush=True)"
    )
    words = [sys.executable, "-c", f"{script}; time.sleep(60)"]
    training = Training(words, Slot({}, {}), tmp_path / "log")
    training.process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert training.process.stdout is not None
    assert training.process.stdout.readline() == b"on\n"
    again = training.checkpoint()
    assert training.process.wait() == 143
    assert again.function.words == words
    assert again.function.process is None
    training.process.stdout.close()


def test_why_slurm_ended_it_is_told(tmp_path: Path) -> None:
    from submitit.core.utils import UncompletedJobError

    class Gone:
        job_id = "5"
        finished = False

        def done(self) -> bool:
            return self.finished

        def result(self) -> int:
            raise UncompletedJobError("Job 5 was cancelled\nCANCELLED by 0\n")

    job = Gone()
    handle = Submitted(job, tmp_path / "log")
    assert handle.poll() is None
    job.finished = True
    assert handle.poll() == 1
    assert (tmp_path / "log").read_text() == "SLURM job 5: CANCELLED by 0\n"


def test_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_options(["partition=gpu", "minutes=60"]) == {"partition": "gpu", "minutes": "60"}
    for word, message in (
        ("partitoin=x", r"did you mean 'partition'"),
        ("minutes=1h", "whole number"),
        ("gpu", "takes"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_options([word])
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ValueError, match="is this a host of the cluster"):
        executor_of({"partition": "gpu"}, tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"pip install 'fastget\[slurm\]'"):
        executor_of({}, tmp_path)
