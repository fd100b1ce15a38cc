"""A progress bar for what takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[int], object]  # told how many more are done


@contextmanager
def progress_bar(
    words: str, total: int | None, console: Console | None = None, *, hidden: bool = False
) -> Iterator[Advance]:
    """A bar that vanishes when it is done, on standard error unless told, and the function that moves it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = console or Console(stderr=True)
    with Progress(*columns, console=console, disable=hidden, transient=True, redirect_stdout=False) as progress:
        task = progress.add_task(words, total=total)
        yield lambda count: progress.advance(task, count)
