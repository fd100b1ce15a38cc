"""Many runs: each one `fastget train` in a process of its own, as many at a time as there are GPUs or cores.

What is done is what the runs' folders say, nothing else: a study that was killed at any moment goes on when it is
called again. A run that fails is an outcome with its reason, and the others go on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fastget.common.errors import Interrupted
from fastget.common.lock import busy, lock_file
from fastget.common.signals import answer, noted
from fastget.config import Config
from fastget.runs.sinks import jsonl
from fastget.runs.summary import SeedsSummary, SeedSummary, read_summary
from fastget.studies.processes import FASTGET, Process, start

Status = Literal["done", "failed", "refused", "pending"]
STOPPING = "every run that is on saves and stops; a second signal ends them at once"
POLL, AGAIN = 0.1, 2.0  # seconds between looks at the processes, and at a run that another process is busy with


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run, of one seed."""

    folder: Path
    settings: Mapping[str, str]  # section.field -> value, all but the seed and the place
    setting: str  # the protocol's name in the study
    seed: int
    point: Mapping[str, str] = field(default_factory=dict)  # a sweep's fields, and their values here
    config: Config | None  # of these settings (task and seed may be another job's); None: they are refused
    refused: str = ""  # why
    row: str = ""  # the name of its row, where there is more to it than method and base model

    def value(self, key: str) -> str:
        """A field's value: as given, else as the configuration has it."""
        if key in self.settings or self.config is None:
            return self.settings.get(key, "")
        section, name = key.split(".")
        found = getattr(getattr(self.config, section), name)
        return "" if found is None else str(found)

    @classmethod
    def each(cls, seeds: Sequence[int], folder: Path, settings: Mapping[str, str], **given: Any) -> list[Job]:
        """One for each seed, in a folder of its own in this one."""
        return [cls(folder=folder / f"seed-{seed}", settings=settings, seed=seed, **given) for seed in seeds]

    @property
    def log(self) -> Path:
        """What the run printed, beside its folder."""
        return self.folder.with_name(f"{self.folder.name}.log")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a job."""

    job: Job
    status: Status = "pending"
    reason: str = ""  # why it was refused, or failed
    summary: SeedSummary | None = None
    seconds: float | None = None  # of its training steps; start and evaluations are left out


def look(job: Job) -> Outcome:
    """What a job's folder says."""
    if job.refused:
        return Outcome(job=job, status="refused", reason=job.refused)
    try:
        summary = read_summary(job.folder)
    except ValueError as error:
        return Outcome(job=job, status="failed", reason=str(error))
    if summary is None:
        return Outcome(job=job)
    if isinstance(summary, SeedsSummary):
        return Outcome(job=job, status="failed", reason=f"{job.folder} holds runs of several seeds: remove it")
    times = jsonl.read(job.folder / "timing.jsonl")
    seconds = round(times[-1]["step"] * times[-1]["step_ms"] / 1000, 1) if times else None
    return Outcome(job=job, status="done", summary=summary, seconds=seconds)


# --- where they run ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """A place for one process: its environment, and settings for what the user has left open."""

    environment: Mapping[str, str]
    settings: Mapping[str, str]
    warm: bool = False  # its processes are forks of one that has imported everything


def find_slots(count: int | None, device: str) -> list[Slot]:
    """A GPU each, or a core each; `count` of them where it is given."""
    cores = len(os.sched_getaffinity(0))
    gpus = [] if device == "cpu" else _gpus()
    if not gpus:
        count = count or cores
        return [Slot({}, {"train.threads": "1", "data.workers": str(max(1, cores // count))}, warm=True)] * count
    count = count or len(gpus)
    share = {"data.workers": str(max(1, cores // count))}
    return [Slot({"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]}, share) for i in range(count)]


def _gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    found = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:found] if named else [str(number) for number in range(found)]


def command(job: Job, slot: Slot, file: str | None) -> list[str]:
    """The run as a command; `file` is --config."""
    settings = dict(job.settings)
    for key, value in slot.settings.items():
        if job.value(key) in ("", "0"):  # its own choice wins
            settings[key] = value
    settings |= {"train.seeds": str(job.seed), "train.out": str(job.folder), "train.resume": "auto"}
    pairs = [f"{key}={value}" for key, value in settings.items()]
    return [*FASTGET, "train", *(["--config", file] if file else []), "--set", *pairs]


def run_environment(slot: Slot) -> dict[str, str]:
    """Of a run's process: that it imports this fastget, wherever it is started from."""
    here = str(Path(__file__).parents[2])
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **slot.environment, "PYTHONPATH": paths}


# --- the pool ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Running:
    number: int  # of the job
    process: Process


class Pool:
    """Runs jobs until none is left, or a signal asks to stop. `outcomes` has them in the jobs' order."""

    def __init__(self, jobs: Sequence[Job], slots: Sequence[Slot], file: str | None = None) -> None:
        self.jobs, self.slots, self.file = jobs, slots, file
        self.outcomes = [look(job) for job in jobs]
        pending = [number for number, outcome in enumerate(self.outcomes) if outcome.status == "pending"]
        self.left = sorted(pending, key=lambda number: jobs[number].seed)  # a first seed of everything comes first
        self.busy: list[_Running | None] = [None] * len(slots)
        self._again: dict[int, float] = {}  # job -> when to look again whether another process has left it

    @property
    def running(self) -> int:
        return sum(one is not None for one in self.busy)

    @property
    def waiting(self) -> list[Job]:
        """Jobs that another process is busy with."""
        return [self.jobs[number] for number in self.left if number in self._again]

    def run(
        self, ended: Callable[[Outcome], object], tick: Callable[[], object], say: Callable[[str], object] = answer
    ) -> None:
        """`ended` is told each outcome, `tick` is called now and then, `say` shows what a signal is answered with.
        Raises Interrupted, with every run saved; no process is left behind, whatever happens here."""
        with noted(lambda: STOPPING, say=say, once=False, leave_ignored=True) as asked:
            try:
                while (self.left or self.running) and not asked:
                    for place in range(len(self.slots)):
                        if self._free(place, ended):
                            self._fill(place, ended)
                    tick()
                    time.sleep(POLL)
            finally:
                self._stop(asked)
            if asked:
                done = sum(outcome.status == "done" for outcome in self.outcomes)
                raise Interrupted(asked[0], f"with {done} of {len(self.jobs)} jobs done; what was running is saved")

    def _free(self, place: int, ended: Callable[[Outcome], object]) -> bool:
        """Whether a slot is free, after its process has ended, if it has."""
        one = self.busy[place]
        if one is None:
            return True
        code = one.process.poll()
        if code is None:
            return False
        self.busy[place] = None
        self._note(one.number, code, ended)
        return True

    def _note(self, number: int, code: int, ended: Callable[[Outcome], object]) -> None:
        job = self.jobs[number]
        outcome = look(job)
        if outcome.status == "pending":
            outcome = Outcome(job=job, status="failed", reason=_why(code, job.log))
        self.outcomes[number] = outcome
        ended(outcome)

    def _fill(self, place: int, ended: Callable[[Outcome], object]) -> None:
        """Start the next job whose folder no other process is busy with."""
        now = time.monotonic()
        for number in [number for number in self.left if self._again.get(number, 0) <= now]:
            job = self.jobs[number]
            try:
                started = self._start(job, self.slots[place])
            except BlockingIOError:
                self._again[number] = now + AGAIN
                continue
            self.left.remove(number)
            if started is None:  # another process has done it meanwhile
                self._note(number, 0, ended)
                continue
            self.busy[place] = _Running(number, started)
            return

    def _start(self, job: Job, slot: Slot) -> Process | None:
        """The run's process. Its log is locked as long as it lives, whatever becomes of this one: BlockingIOError if a
        process of an earlier call, or of another one, still holds it, or a `fastget train` of its own the folder."""
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            if lock_file(log.fileno()) is False or busy(job.folder):
                raise BlockingIOError
            if look(job).status != "pending":
                return None
            log.truncate(0)
            return start(command(job, slot, self.file), run_environment(slot), log.fileno(), warm=slot.warm)

    def _stop(self, asked: list[int]) -> None:
        """Ask every process to save and stop, and wait; a second signal ends them at once."""
        processes = [one.process for one in self.busy if one is not None]
        for process in processes:
            process.terminate()
        while any(process.poll() is None for process in processes):
            if len(asked) > 1:
                for process in processes:
                    process.kill()
            time.sleep(POLL)
        for one in self.busy:
            if one is not None:
                self.outcomes[one.number] = look(self.jobs[one.number])  # it may have reached its end first
        self.busy = [None] * len(self.slots)


def _why(code: int, log: Path) -> str:
    """Why a run failed: the last line of what it said, or the signal that ended it."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1].removeprefix("fastget: ") if lines else "it printed nothing"
    if code >= 0:
        return last
    name = signal.Signals(-code).name
    return f"ended by {name}{', as where memory runs out' if name == 'SIGKILL' else ''}; its last line: {last}"
