"""The check of a data set: every file that cannot be trained on is named, with the reason.

`quick` looks at the first and last bytes of each file (what `train` does before it starts); `full` decodes every file,
which alone finds damage in mid-stream. Both run in parallel, and remember their results by (path, size, mtime), so
that an unchanged file is looked at once: `train` knows what a full check has found.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastget.common.errors import RunFailed
from fastget.common.files import CHUNK, sizes_and_times
from fastget.common.progress import Advance
from fastget.common.text import escaped
from fastget.data.check.cache import FULL, QUICK, Remembered
from fastget.data.decode import MAX_PIXELS, Problem, look_at_ends
from fastget.data.lists import ImageList


@dataclass(frozen=True)
class CheckReport:
    """What a check found."""

    checked: int
    remembered: int  # of those, how many were known from an earlier check
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # lines for people, on the check itself

    @property
    def bad(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.bad]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.problems if not problem.bad]


def check(
    files: Sequence[str],
    *,
    full: bool,
    workers: int = 0,
    max_pixels: int = MAX_PIXELS,
    again: bool = False,  # whatever is remembered
    advance: Advance | None = None,
) -> CheckReport:
    """Looks at every file once, however often it is listed. The problems come in the files' order."""
    files = list(dict.fromkeys(files))
    workers = workers or os.cpu_count() or 1
    memory = Remembered.load(max_pixels)
    level = FULL if full else QUICK
    stats = sizes_and_times(files, workers)
    found: dict[int, Problem] = {}
    remembered = np.zeros(len(files), dtype=bool) if again else memory.look_up(files, stats, level, found)
    todo = np.flatnonzero(~remembered)
    if advance:
        advance(int(remembered.sum()))
    done: list[int] = []  # of `todo`: a check that is stopped remembers these
    try:
        for i, problem in _look_at(files, todo, workers, max_pixels):
            if problem:
                found[i] = problem
            if not full or (problem and problem.bad):
                done.append(i)
                if advance:
                    advance(1)
        if full:
            whole = np.array([i for i in todo.tolist() if i not in found or not found[i].bad], dtype=np.int64)
            for i, problem in _decode(files, whole, workers, max_pixels):
                if problem:
                    found[i] = problem
                done.append(i)
                if advance:
                    advance(1)
    finally:
        sure = np.array(done, dtype=np.int64)
        memory.add(files, stats, sure[stats[sure, 0] > 0], level, found)
        memory.save()
    notes = [memory.damage] if memory.damage else []
    return CheckReport(len(files), int(remembered.sum()), [found[i] for i in sorted(found)], notes)


def check_lists(
    lists: Sequence[ImageList],
    *,
    full: bool,
    workers: int = 0,
    max_pixels: int = MAX_PIXELS,
    again: bool = False,
    advance: Advance | None = None,
) -> CheckReport:
    """The check of all images of some lists, and of their names, which a run writes into its results."""
    files = [file for images in lists for file in images.files()]
    report = check(files, full=full, workers=workers, max_pixels=max_pixels, again=again, advance=advance)
    unnamed = {images.file(i): path for images in lists for i, path in enumerate(images.paths) if not _is_text(path)}
    named = [problem for problem in report.problems if problem.path not in unnamed]
    odd = [
        Problem(file, "name", f"has a name that is not UTF-8 text ({escaped(path)}): rename it")
        for file, path in unnamed.items()
    ]
    return dataclasses.replace(report, problems=[*named, *odd])


def _is_text(path: str) -> bool:
    """Whether it can be written as UTF-8: a name of other bytes has surrogates in place of them."""
    if path.isascii():
        return True
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _look_at(
    files: Sequence[str], todo: NDArray[np.int64], workers: int, max_pixels: int
) -> Iterator[tuple[int, Problem | None]]:
    """In threads: it is mostly waiting for the disk."""

    left = threading.Event()  # a signal stops the check: no thread is to finish its part first

    def some(part: NDArray[np.int64]) -> list[tuple[int, Problem | None]]:
        return [(i, look_at_ends(files[i], max_pixels)) for i in part.tolist() if not left.is_set()]

    parts = [todo[start : start + CHUNK] for start in range(0, len(todo), CHUNK)]
    with ThreadPoolExecutor(2 * workers) as pool:
        try:
            for results in pool.map(some, parts):
                yield from results
        finally:
            left.set()


def _decode(
    files: Sequence[str], todo: NDArray[np.int64], workers: int, max_pixels: int
) -> Iterator[tuple[int, Problem | None]]:
    """In processes, one for each worker, as many as are worth their start."""
    if not len(todo):
        return
    workers = max(1, min(workers, len(todo) // 100))
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    everyone = [_Worker(max_pixels) for _ in range(workers)]
    for worker in everyone:
        idle.put(worker)

    def one(i: int) -> tuple[int, Problem | None]:
        worker = idle.get()
        try:
            return i, worker.inspect(files[i])
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(workers) as pool:
            order = iter(todo.tolist())
            while part := list(islice(order, CHUNK * workers)):
                yield from pool.map(one, part)
    finally:
        for worker in everyone:
            worker.close()


class _Worker:
    """A `check_worker` process, started again if a file makes it crash."""

    def __init__(self, max_pixels: int = MAX_PIXELS) -> None:
        self._max_pixels = max_pixels
        self._start()

    def _start(self) -> None:
        here = str(Path(__file__).parents[3])  # so that it imports this fastget, wherever it is started from
        paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fastget.data.check.worker", str(self._max_pixels)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:  # too many open files, or processes
            raise RunFailed(f"cannot start a process to check images: {error.strerror}; use fewer --workers") from error

    def inspect(self, file: str) -> Problem | None:
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(json.dumps(file) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self._process.wait()
            self._start()
            return Problem(file, "corrupt", f"makes the decoder crash (exit code {code})")
        said = json.loads(answer)
        return Problem(file, *said) if said else None

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
