"""What commands print: lines as they are, and standard output that cannot be written (a full disk, a closed pipe)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from rich.console import Console
from rich.markup import escape

from fastget.common.text import escaped

NOTE, WARNING = "[yellow]note:[/] ", "[yellow]warning:[/] "


def say(text: str, mark: str = "", *, out: bool = False) -> None:
    """A line on standard error, or standard output: whatever is in a name is no markup and no escape sequence. `mark`
    comes before it, as rich writes it."""
    Console(stderr=not out).print(mark + escape(escaped(text)), highlight=False, soft_wrap=True)


class OutputFailed(Exception):
    """Standard output cannot be written. No OSError: the folder of a run is not what is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to standard output: {error.strerror}")
        self.closed = isinstance(error, BrokenPipeError)


class _Guarded:
    """A stream whose failures are told from those of files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise OutputFailed(error) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputFailed(error) from error


@contextmanager
def guarded() -> Iterator[None]:
    """OutputFailed in place of an OSError, also for what is still on its way when the block ends."""
    stream = sys.stdout
    guard = _Guarded(stream)
    sys.stdout = cast(TextIO, guard)
    try:
        try:
            yield
        finally:
            guard.flush()  # also where argparse has shown its help, and leaves
    except OutputFailed:
        _throw_away(stream)
        raise
    finally:
        sys.stdout = stream


def _throw_away(stream: TextIO) -> None:
    """Python would fail once more when it ends and writes what is left."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
