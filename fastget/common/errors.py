"""How a run ends before its end."""

from __future__ import annotations

import signal


class RunFailed(RuntimeError):
    """A run that had to stop; the text says at which step, why, and what to try."""


class Interrupted(Exception):
    """The run was asked to stop, and did, with a checkpoint."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} {text}")
        self.number, self.text = number, text
