"""A study's runs as SLURM jobs, one each, by `submitit`; at most so many at a time.

What is done is still what the runs' folders say. The id of a job that is in SLURM's hands stands beside its run
(`seed-N.slurm`): a study that was killed takes such jobs up again, and submits none of them twice.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastget.common.files import write_atomically
from fastget.common.lock import busy
from fastget.common.text import nearest
from fastget.studies import jobs
from fastget.studies.jobs import Job, Pool, Slot, look
from fastget.studies.processes import Process

AT_A_TIME = 64  # SLURM jobs, where --gpus does not say
FOLDER = ".slurm"  # of submitit's own files, in the study's
# option -> submitit's name for it, and its type
OPTIONS: dict[str, tuple[str, type[Any]]] = {
    "partition": ("slurm_partition", str),
    "account": ("slurm_account", str),
    "qos": ("slurm_qos", str),
    "constraint": ("slurm_constraint", str),
    "minutes": ("timeout_min", int),
    "cpus": ("cpus_per_task", int),
    "gigabytes": ("mem_gb", int),
    "gpus": ("gpus_per_node", int),
}
DEFAULTS = {"minutes": "1440", "cpus": "8", "gpus": "1"}
CLUSTER = "cluster"  # slurm, or local: the same on this machine, to try it


def parse_options(words: Sequence[str]) -> dict[str, str]:
    """`partition=gpu minutes=240 ...`. ValueError names those that there are."""
    known = [*OPTIONS, CLUSTER]
    found = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or key not in known:
            names = ", ".join(f"{one}=..." for one in known)
            raise ValueError(f"--slurm takes {names}, got {word!r}{nearest(key, known)}")
        if key in OPTIONS and OPTIONS[key][1] is int and not value.isdigit():
            raise ValueError(f"--slurm {key}= takes a whole number, got {value!r}")
        found[key] = value
    return found


def executor_of(options: Mapping[str, str], folder: Path) -> Any:
    """submitit's. ValueError if it, or SLURM, is not here."""
    try:
        import submitit
    except ImportError as error:
        raise ValueError("--slurm needs submitit: pip install 'fastget[slurm]'") from error
    cluster = options.get(CLUSTER, "slurm")
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"--slurm: {error}; is this a host of the cluster?") from error
    given = {**DEFAULTS, **{key: value for key, value in options.items() if key != CLUSTER}}
    named = {OPTIONS[key][0]: OPTIONS[key][1](value) for key, value in given.items()}
    if cluster == "local":
        named["gpus_per_node"] = 0  # one process after the other's heels, as on a machine without any
    executor.update_parameters(**named, name="fastget")
    return executor


class Training:
    """What a SLURM job does: `fastget train` with its output in the run's log. Before its time is up it is saved, and
    submitted again: submitit calls `checkpoint`."""

    def __init__(self, words: Sequence[str], slot: Slot, log: Path) -> None:
        self.words, self.slot, self.log = list(words), slot, log
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.words, env=jobs.run_environment(self.slot), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,  # SLURM's warning is ours alone: USR2 would end it
            )  # fmt: skip
        try:
            return self.process.wait()
        except BaseException:  # stopped from outside: it saves, and nothing of it is left behind
            self._save()
            raise

    def _save(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()

    def checkpoint(self) -> Any:
        import submitit

        self._save()
        return submitit.helpers.DelayedSubmission(Training(self.words, self.slot, self.log))


class Submitted:
    """A SLURM job, with the face of a process."""

    def __init__(self, job: Any, log: Path) -> None:
        self.job, self.log = job, log

    def poll(self) -> int | None:
        """The run's exit code, once it has ended; 1, with the reason in the log, if SLURM ended it."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        if not self.job.done():
            return None
        try:
            return int(self.job.result())
        except (FailedJobError, UncompletedJobError, OSError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"SLURM job {self.job.job_id}: {lines[-1].strip()}\n")
            return 1

    def terminate(self) -> None:
        self.job.cancel(check=False)

    def kill(self) -> None:
        self.job.cancel(check=False)


class SlurmPool(Pool):
    """Jobs in SLURM's hands."""

    def __init__(
        self, jobs: Sequence[Job], out: Path, options: Mapping[str, str], count: int | None, file: str | None
    ) -> None:
        super().__init__(jobs, [Slot({}, {})] * min(count or AT_A_TIME, max(1, len(jobs))), file)
        self.folder = (out / FOLDER).absolute()
        self.executor = executor_of(options, self.folder)

    def _start(self, job: Job, slot: Slot) -> Process | None:
        """Submitted, or taken up where an earlier call has submitted it."""
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        if look(job).status != "pending":
            return None
        record = job.folder.with_name(f"{job.folder.name}.slurm")
        if found := self._earlier(record):
            return Submitted(found, job.log)
        if busy(job.folder):
            raise BlockingIOError
        job.log.write_bytes(b"")
        submitted = self.executor.submit(Training(jobs.command(job, slot, self.file), slot, job.log.absolute()))
        write_atomically(record, f"{submitted.job_id}\n".encode())
        return Submitted(submitted, job.log)

    def _earlier(self, record: Path) -> Any | None:
        """The SLURM job of an earlier call, if it has not ended."""
        if self.executor.cluster != "slurm" or not record.is_file():
            return None
        with suppress(OSError, subprocess.SubprocessError):  # SLURM does not know it any more
            import submitit

            found: Any = submitit.SlurmJob(folder=self.folder, job_id=record.read_text(encoding="utf-8").strip())
            return None if found.done(force_check=True) else found
        return None
