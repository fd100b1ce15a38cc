"""How fast a table's runs are: by those that are done, else by a short run of the first one."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastget.common.files import write_atomically
from fastget.config import make_config
from fastget.planning.counts import passes_on
from fastget.planning.forecast import Pace, forecast, images_of, pace_of, sizes_in
from fastget.runs.sinks import jsonl
from fastget.studies import jobs
from fastget.studies.jobs import Job, Outcome, Slot
from fastget.training.passes import Passes

SHORT = 8  # steps of a measured run; where no more are to come there is none
LIMIT = 600  # seconds that a measured run may take


def to_come(outcomes: Sequence[Outcome], slots: Sequence[Slot], measure_it: bool) -> list[str]:
    """Lines for people: what there is to run, and how long it may take."""
    jobs_left = [one.job for one in outcomes if one.status == "pending"]
    if not jobs_left:
        return ["nothing is left to run"]
    left, first = [one for job in jobs_left for one in passes(job)], jobs_left[0]
    done = [(planned, one.seconds) for one in outcomes if one.summary is not None and one.seconds
            for planned in passes(one.job)]  # fmt: skip
    worth = measure_it and sum(one.plan.max_steps for one in left) > SHORT and first.value("data.root")
    pace = pace_of(done, (lambda: short_run(first, slots[0])) if worth else None)
    return forecast(left, len(jobs_left), pace, min(len(slots), len(jobs_left)))


def passes(job: Job) -> list[Passes]:
    """None of a job that will fail at its start. ValueError if the root does not hold a domain."""
    assert job.config is not None
    sizes = sizes_in(job.config, job.value("data.source"), job.value("data.target"))
    try:
        return [passes_on(job.config, sizes)]
    except ValueError:
        return []


def short_run(job: Job, slot: Slot) -> Pace:
    """By a run of a few steps on a few of the job's own images. ValueError with its last words."""
    assert job.config is not None
    with tempfile.TemporaryDirectory(prefix="fastget-measure-") as place:
        short = _short(job, Path(place))
        words = jobs.command(short, slot, None)
        try:
            done = subprocess.run(words, env=jobs.run_environment(slot), stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=LIMIT)  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"its {SHORT} steps took more than {LIMIT} s") from error
        ended = time.time()
        times = [line for line in jsonl.read(short.folder / "timing.jsonl") if line.get("step_ms")]
        if done.returncode or not times:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["it printed nothing"]
            raise ValueError(lines[-1].removeprefix("fastget: "))
        began = (short.folder / "config.yaml").stat().st_mtime  # Python's own start is no part: runs here are forks
    fastest = max(times, key=_rate)  # the first ones are the slowest
    spent = times[-1]["step"] * times[-1]["step_ms"] / 1000
    return Pace(_rate(fastest), max(0.0, ended - began - spent), f"measured: {fastest['step_ms']:,.0f} ms a step")


def _rate(line: Mapping[str, Any]) -> float:
    """Image passes a second, by a line of timing.jsonl."""
    return float(1000 * sum(line["image_passes"].values()) / line["step_ms"])


def _short(job: Job, place: Path) -> Job:
    """The same network and method on lists of a few images, so that evaluations take no time."""
    assert job.config is not None
    assert job.config.data.root is not None
    data, size = job.config.data, 2 * job.config.train.batch_size
    given: dict[str, str] = {}
    for role in ("source", "target"):
        images = images_of(data.name, data.root, job.value(f"data.{role}"))
        chosen = np.unique(np.linspace(0, len(images) - 1, size).astype(int))  # of all classes
        lines = [f"{(images.root / images.paths[i]).absolute()} {images.labels[i]}\n" for i in chosen]
        write_atomically(place / f"{role}.txt", "".join(lines).encode("utf-8", "surrogateescape"))
        given[f"data.{role}"] = str(place / f"{role}.txt")
    dropped = ("data.pda", "data.imbalanced", "data.shots", "data.split", "train.")
    settings = {key: value for key, value in job.settings.items() if not key.startswith(dropped)}
    settings |= {"data.name": "lists", "data.setting": "uda", "data.root": "/", **given, **_same_train(job.settings)}
    settings |= {"train.max_steps": str(SHORT), "train.warmup_steps": "2", "train.log_every": "2",
                 "train.eval_every": str(SHORT), "train.tensorboard": "false", "train.watch": "0"}  # fmt: skip
    return Job(folder=place / "run", settings=settings, setting="uda", seed=0, config=make_config(settings))


def _same_train(settings: Mapping[str, str]) -> dict[str, str]:
    """What a step's time depends on."""
    names = ("batch_size", "device", "precision", "force_precision", "compile", "threads", "eval_batch_size")
    keys = [f"train.{name}" for name in names]
    return {key: settings[key] for key in keys if key in settings}
