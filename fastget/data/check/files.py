"""Which files of a data set cannot be trained on, and why.

`quick` looks at the first and last bytes of each file (what `train` does before it starts); `full` decodes every file,
which alone finds damage in mid-stream. Both run in parallel, and remember their results by (path, size, mtime), so
that an unchanged file is looked at once: `train` knows what a full check has found.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from fastget.common.errors import RunFailed
from fastget.common.files import CHUNK, sizes_and_times
from fastget.common.progress import Advance
from fastget.common.text import and_more, escaped
from fastget.config import DataConfig
from fastget.data.check.cache import FULL, QUICK, Remembered
from fastget.data.check.worker import serve
from fastget.data.decode import MAX_PIXELS, Problem, look_at_ends
from fastget.data.folders import unreadable
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
    memory = Remembered(max_pixels)
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
    odd = {
        images.file(i): Problem(
            images.file(i), "name", f"has a name that is not UTF-8 text ({escaped(path)}): rename it"
        )
        for images in lists
        for i, path in enumerate(images.paths)
        if not path.isascii() and path.encode(errors="replace").decode() != path  # a byte that is no text
    }
    named = [problem for problem in report.problems if problem.path not in odd]
    return dataclasses.replace(report, problems=[*named, *odd.values()])


def without_bad(
    lists: Mapping[str, ImageList],
    data: DataConfig,
    workers: int = 0,
    advance: Advance | None = None,
    whole: Sequence[ImageList] = (),  # the domains that they are parts of, where they are parts
) -> tuple[dict[str, ImageList], CheckReport]:
    """Lists by any name, after a quick look at every file, without the bad ones; ValueError if those are an error."""
    closed = {one.path: one.reason for some in whole or lists.values() for one in unreadable(some.unused)}
    if closed and data.bad_images == "error":  # left out, they are counted
        words = and_more([f"{path} is {reason}" for path, reason in closed.items()])
        raise ValueError(f"{words}: give yourself the right to (chmod), or leave it out by --bad-images skip")
    report = check_lists(
        list(lists.values()),
        full=False,
        workers=workers or data.workers,
        max_pixels=data.max_pixels,
        advance=advance,
    )
    if not report.bad:
        return dict(lists), report
    if data.bad_images == "error":
        missing = sum(problem.kind == "missing" for problem in report.bad) == report.checked
        root = "Check --root: " if missing else ""
        raise ValueError(
            f"{len(report.bad):,} of {report.checked:,} images cannot be read: "
            f"{and_more([f'{problem.path} {problem.reason}' for problem in report.bad])}. "
            f"{root}`fastget data check` lists them all; --bad-images skip leaves them out"
        )
    bad = {problem.path for problem in report.bad}
    kept: dict[str, ImageList] = {}
    for role, images in lists.items():
        good = np.fromiter((file not in bad for file in images.files()), dtype=bool, count=len(images))
        if not good.any():
            first = report.bad[0]
            raise ValueError(
                f"all {len(images):,} images of {images.name} are bad; the first: {first.path} {first.reason}. "
                "Check --root"
            )
        kept[role] = images if good.all() else images.keep(good)
    return kept, report


Looked = tuple[int, Problem | None]  # at which file, and what is wrong with it


def _looked_at(files: Sequence[str], todo: list[int], full: bool, workers: int, max_pixels: int) -> Iterator[Looked]:
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
) -> Iterator[Looked]:
    """In the order of `todo`: threads, since they mostly wait, for the disk or for another process."""
    stopped = threading.Event()  # by a signal: no thread is to finish its part first

    def some(start: int) -> list[Looked]:
        return [(i, look(i)) for i in todo[start : start + chunk] if not stopped.is_set()]

    with ThreadPoolExecutor(workers) as pool:
        try:
            for results in pool.map(some, range(0, len(todo), chunk)):
                yield from results
        finally:
            stopped.set()


def _decoded(files: Sequence[str], todo: list[int], workers: int, max_pixels: int) -> Iterator[Looked]:
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
        context = multiprocessing.get_context("spawn")  # threads are running, which a fork would not copy
        try:
            self._asked, its = context.Pipe()
            self._process = context.Process(target=serve, args=(its, self._max_pixels), daemon=True)
            self._process.start()
        except OSError as error:  # too many open files, or processes
            raise RunFailed(f"cannot start a process to check images: {error.strerror}; use fewer --workers") from error
        its.close()

    def inspect(self, file: str) -> Problem | None:
        try:
            self._asked.send(file)
            found: Problem | None = self._asked.recv()
        except (EOFError, OSError):
            self.close()
            crash = Problem(file, "corrupt", f"makes the decoder crash (exit code {self._process.exitcode})")
            self._start()
            return crash
        return found

    def close(self) -> None:
        self._asked.close()
        self._process.join()
