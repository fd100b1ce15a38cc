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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

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
    advance = advance or (lambda _: None)
    memory = Remembered.load(max_pixels)
    level = FULL if full else QUICK
    stats = sizes_and_times(files, workers)
    found: dict[int, Problem] = {}
    remembered = np.zeros(len(files), dtype=bool) if again else memory.look_up(files, stats, level, found)
    advance(int(remembered.sum()))
    done: list[int] = []  # a check that is stopped remembers these
    try:
        for i, problem in _looked_at(files, np.flatnonzero(~remembered).tolist(), full, workers, max_pixels):
            if problem:
                found[i] = problem
            done.append(i)
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


Result = tuple[int, Problem | None]  # of which file


def _looked_at(files: Sequence[str], todo: list[int], full: bool, workers: int, max_pixels: int) -> Iterator[Result]:
    """The ends of every file, and all of those that are not bad by them."""
    whole: dict[int, Problem | None] = {}
    for i, problem in _in_threads(lambda i: look_at_ends(files[i], max_pixels), todo, 2 * workers, CHUNK):
        if full and not (problem and problem.bad):
            whole[i] = problem
        else:
            yield i, problem
    for i, problem in _decoded(files, list(whole), workers, max_pixels):
        yield i, problem or whole[i]


def _in_threads(
    look: Callable[[int], Problem | None], todo: Sequence[int], workers: int, chunk: int
) -> Iterator[Result]:
    """In the order of `todo`: threads, since they mostly wait, for the disk or for another process."""
    stopped = threading.Event()  # by a signal: no thread is to finish its part first

    def some(start: int) -> list[Result]:
        return [(i, look(i)) for i in todo[start : start + chunk] if not stopped.is_set()]

    with ThreadPoolExecutor(workers) as pool:
        try:
            for results in pool.map(some, range(0, len(todo), chunk)):
                yield from results
        finally:
            stopped.set()


def _decoded(files: Sequence[str], todo: list[int], workers: int, max_pixels: int) -> Iterator[Result]:
    """In processes, one for each worker, as many as are worth their start."""
    workers = max(1, min(workers, len(todo) // 100))
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    everyone = [_Worker(max_pixels) for _ in range(workers if todo else 0)]
    for worker in everyone:
        idle.put(worker)

    def one(i: int) -> Problem | None:
        worker = idle.get()
        try:
            return worker.inspect(files[i])
        finally:
            idle.put(worker)

    try:
        yield from _in_threads(one, todo, workers, 1)
    finally:
        for worker in everyone:
            worker.close()


class _Worker:
    """A process of `worker.py`, started again if a file makes it crash.

    No pool of the standard library does: one of theirs breaks as a whole, and does not tell by which file.
    """

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
