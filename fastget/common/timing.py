"""Named phases of a step, and the images that go through the network in it: counted and timed by whoever asks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Timer:
    """Times and counts nothing. `training.cost.Meter` is one that does."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Charge what is inside to this name."""
        return nullcontext()

    def images(self, what: str, rows: int, trained: bool) -> None:
        """So many images go through the network, to learn from them or only to look at them."""


UNTIMED = Timer()
