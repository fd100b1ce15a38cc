"""How a run ends before its end."""

from __future__ import annotations

import signal


class RunFailed(RuntimeError):
    """A run that had to stop; the text says at which step, why, and what to try."""


class Interrupted(Exception):
    """A signal asked to stop; the text says where, and what is saved."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} {text}".rstrip())
        self.number, self.text = number, text
