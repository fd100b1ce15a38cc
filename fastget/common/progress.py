"""A progress bar for what takes long; where there is no terminal, a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[int], object]  # told how many more are done
EVERY = 30  # seconds without a word, where there is no bar, after which a line is due


class NowAndThen:
    """When a log is owed a line: after half a minute without one, and later on after a fiftieth of the time so far, so
    that a run of days has some hundred."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()

    def due(self) -> bool:
        """Whether a line is; it counts as told then."""
        now = time.monotonic()
        if now - self._told <= max(EVERY, (now - self._began) / 50):
            return False
        self._told = now
        return True

    def told(self) -> None:
        """Something else was."""
        self._told = time.monotonic()


@contextmanager
def progress_bar(
    words: str, total: int | None, console: Console | None = None, *, hidden: bool = False
) -> Iterator[Advance]:
    """A bar that vanishes when it is done, on standard error unless told, and the function that moves it."""
    console = console or Console(stderr=True)
    if hidden or not console.is_terminal:
        yield _lines(words, total, console, hidden)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
        task = progress.add_task(words, total=total)
        yield lambda count: progress.advance(task, count)


def _lines(words: str, total: int | None, console: Console, hidden: bool) -> Advance:
    done, lines = 0, NowAndThen()

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if not hidden and lines.due():
            so_far = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            console.print(f"{words}: {so_far}", highlight=False, markup=False, soft_wrap=True)

    return advance
