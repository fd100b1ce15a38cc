"""What a table will take: jobs, steps, images, and how long that is, by a short measured run where one is worth it.

Images and steps are counted, not drawn: a list that loses its bad files, or shots, is a little shorter.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastget.archive.statistics import counted
from fastget.common.files import write_atomically
from fastget.config import Config, make_config
from fastget.data.datasets import DATA_SETS
from fastget.data.lists import ImageList
from fastget.data.published import read_domain
from fastget.planning.counts import in_setting
from fastget.runs.sinks import jsonl
from fastget.studies import jobs
from fastget.studies.jobs import Job, Outcome, Slot

ASSUMED = 1000  # images a second of a GPU, in words, where nothing was measured
SHORT = 8  # steps of a measured run; where no more are to come there is none
FORWARD = 1 / 3  # cost of an image in evaluation, to that of one in training
LIMIT = 600  # seconds that a measured run may take


@dataclass(frozen=True)
class Work:
    """Of one job."""

    steps: int
    batch: int  # images a step, of both domains
    evaluated: int  # images, over all evaluations

    @property
    def images(self) -> int:
        """In training, and those of evaluations by what they cost."""
        return self.steps * self.batch + round(FORWARD * self.evaluated)


class Pace(NamedTuple):
    """How fast runs are, and where that is from."""

    rate: float  # images a second, of one of them
    beside: float  # seconds a run, beside its steps: its start, its end
    how: str


def work(job: Job) -> Work:
    """ValueError if the root does not hold a domain."""
    assert job.config is not None
    config = job.config
    source = _count(config, job.value("data.source"))
    known = DATA_SETS[config.data.name]
    target = in_setting(config, _count(config, job.value("data.target")), known.num_classes)
    train = config.train
    unlabelled = train.batch_size - (max(1, train.batch_size // 3) if config.data.setting == "ssda" else 0)
    epoch = max(1, source // train.batch_size, target // max(1, unlabelled))
    steps = train.max_steps or train.epochs * epoch
    evaluations = max(1, steps // (train.eval_every or max(1, steps // 10)))
    return Work(steps, 2 * train.batch_size, (evaluations - 1) * train.interim_images(target) + target)


def _count(config: Config, domain: str) -> int:
    """Images of a domain: of the root, where it is given, else as published."""
    data = config.data
    if data.root is None:
        return DATA_SETS[data.name].domains[domain]
    return len(_read(data.name, data.root, domain))


@lru_cache
def _read(data: str, root: str, domain: str) -> ImageList:
    return read_domain(DATA_SETS[data], Path(root), domain)


# --- in words ------------------------------------------------------------------------------------


def forecast(outcomes: Sequence[Outcome], slots: Sequence[Slot], measure_it: bool) -> list[str]:
    """Lines for people: what there is to run, and how long it may take."""
    left = [one.job for one in outcomes if one.status == "pending"]
    if not left:
        return ["nothing is left to run"]
    known = {job.folder: work(job) for job in left}
    steps, images = sum(one.steps for one in known.values()), sum(one.images for one in known.values())
    lines = [f"to run: {counted(len(left), 'job')}, {steps:,} steps, {images:,} images through the network "
             "(one in evaluation counts as a third)"]  # fmt: skip
    pace = _pace(outcomes, left[0], slots[0], measure_it and steps > SHORT)
    at_a_time = min(len(slots), len(left))
    span = in_words((images / pace.rate + len(left) * pace.beside) / at_a_time)
    start = f", and {pace.beside:.1f} s for its start and end" if pace.beside else ""
    each = f"{at_a_time} at a time, each at {pace.rate:,.0f} images a second{start}"
    lines.append(f"time: about {span}: {each} ({pace.how})")
    return lines


def in_words(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(1, round(seconds))} s"


def _pace(outcomes: Sequence[Outcome], job: Job, slot: Slot, measure_it: bool) -> Pace:
    """By the jobs that are done, else by a short run, else assumed."""
    done = [one for one in outcomes if one.summary is not None and one.seconds]
    seconds = sum(one.seconds or 0 for one in done)
    if seconds > 0:
        images = sum(one.summary.steps * 2 * one.job.config.train.batch_size for one in done
                     if one.summary is not None and one.job.config is not None)  # fmt: skip
        return Pace(images / seconds, 0, f"as in the {counted(len(done), 'job')} done before; measured")
    why = "assumed, of a recent GPU: nothing was measured"
    if measure_it and job.config is not None and job.config.data.root is not None:
        try:
            return measure(job, slot)
        except (ValueError, OSError, subprocess.SubprocessError) as error:
            why = f"assumed, of a recent GPU, as the run to measure it failed: {error}"
    return Pace(ASSUMED, 0, why)


# --- a short run ---------------------------------------------------------------------------------


def measure(job: Job, slot: Slot) -> Pace:
    """By a run of a few steps on a few of the job's own images. ValueError with its last words."""
    assert job.config is not None
    with tempfile.TemporaryDirectory(prefix="fastget-measure-") as place:
        short = _short(job, Path(place))
        words = jobs.command(short, slot, None)
        done = subprocess.run(
            words, env=jobs.environment(slot), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT
        )
        ended = time.time()
        times = [line for line in jsonl.read(short.folder / "timing.jsonl") if line.get("step_ms")]
        if done.returncode or not times:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["it printed nothing"]
            raise ValueError(lines[-1].removeprefix("fastget: "))
        began = (short.folder / "config.yaml").stat().st_mtime  # Python's own start is no part: runs here are forks
    step = min(line["step_ms"] for line in times) / 1000  # the first ones are the slowest
    spent = times[-1]["step"] * times[-1]["step_ms"] / 1000
    how = f"measured: {1000 * step:,.0f} ms a step"
    return Pace(2 * job.config.train.batch_size / step, max(0.0, ended - began - spent), how)


def _short(job: Job, place: Path) -> Job:
    """The same network and method on lists of a few images, so that evaluations take no time."""
    assert job.config is not None
    assert job.config.data.root is not None
    data, size = job.config.data, 2 * job.config.train.batch_size
    given: dict[str, str] = {}
    for role in ("source", "target"):
        images = _read(data.name, data.root, job.value(f"data.{role}"))
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
