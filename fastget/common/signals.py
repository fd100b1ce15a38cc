"""Signals that ask to stop: answered at once, and acted on where nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fastget.common.errors import Interrupted

ASKING = (signal.SIGTERM, signal.SIGINT)
Handler = Callable[[int, FrameType | None], None]


class Stopped(KeyboardInterrupt):
    """A signal that stops what goes on at once."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def number_of(stop: KeyboardInterrupt) -> int:
    """The signal: Ctrl-C's unless it says otherwise."""
    return stop.number if isinstance(stop, Stopped) else signal.SIGINT


def answer(text: str) -> None:
    """A line on standard error, at once. Not by a stream, which may be in the midst of a line of its own."""
    with contextlib.suppress(OSError):
        start = "\r\x1b[K" if os.isatty(2) else ""  # over a progress bar
        os.write(2, f"{start}fastget: {text}\n".encode(errors="replace"))


@contextmanager
def noted(
    words: Callable[[], str],
    *,
    say: Callable[[str], object] = answer,
    once: bool = True,
    leave_ignored: bool = False,
) -> Iterator[list[int]]:
    """SIGTERM, SIGINT and a closed terminal are noted in a list, to be acted on between two things, and answered with
    `words`. `say`: what shows them, where a line of its own would be drawn over; it is called in the midst of
    anything, and must not print. `once`: a second one stops at once. `leave_ignored`: what is ignored (nohup, a
    script's &) stays so."""
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) == 1:
            say(f"{signal.Signals(number).name}: {words()}")
        elif once:
            raise Stopped(number)

    with _handled(note, () if leave_ignored else ASKING):
        yield asked


@contextmanager
def raising() -> Iterator[None]:
    """SIGTERM and a closed terminal raise Stopped, as Ctrl-C raises KeyboardInterrupt: what is half-made is undone."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handled(stop, (), numbers=(signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def stopping(what: str) -> Iterator[None]:
    """A signal that comes in the block ends it as Interrupted, which says `what` becomes of what was going on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(number_of(stop), what) from stop


@contextmanager
def _handled(
    handler: Handler, always: Sequence[int], numbers: Sequence[int] = (*ASKING, signal.SIGHUP)
) -> Iterator[None]:
    """Those of the numbers that are not ignored, or that are handled always. Elsewhere than in the main thread nothing
    is: the program around us handles its signals."""
    old: dict[int, Any] = {}
    try:
        for number in numbers:
            if number in always or signal.getsignal(number) != signal.SIG_IGN:
                old[number] = signal.signal(number, handler)
    except ValueError:
        old = {}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)
