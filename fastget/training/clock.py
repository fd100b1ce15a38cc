"""How fast a run is, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Images per second as total images over total time, evaluations and checkpoints left out."""

    def __init__(self) -> None:
        self.images = 0
        self.steps = 0
        self.passes = 0.0  # image passes of these steps, as far as they have been read from the meter
        self._read = (0, 0.0)  # steps and seconds when it was read last
        self._start = time.perf_counter()
        self._out = 0.0
        self._waited = 0.0
        self._evaluations = (0, 0.0)  # and their seconds

    def left(self, steps: int, evaluations: int, images: int) -> float:
        """Seconds that so many steps and evaluations, of so many images each, will take. Until the first one is
        measured, an image that is looked at counts as a third of one that is learned from."""
        elapsed = time.perf_counter() - self._start - self._out
        count, seconds = self._evaluations
        each = seconds / count if count else elapsed / max(1, self.images) / 3 * images
        return steps * elapsed / max(1, self.steps) + evaluations * each

    def speed(self, images: int) -> tuple[float, float]:
        """Seconds that an image pass of training takes, and an image of the evaluations, which are of so many; the
        first again where none is measured."""
        a_pass = (time.perf_counter() - self._start - self._out) / max(1.0, self.passes)
        count, seconds = self._evaluations
        return a_pass, seconds / (count * images) if count and images else a_pass

    def read(self) -> dict[str, float]:
        elapsed = time.perf_counter() - self._start - self._out
        return {
            "images_per_second": round(self.images / elapsed, 2),
            "data_wait": round(self._waited / elapsed, 4),
            "paused_s": round(self._out, 3),
            "step_ms": round(1000 * self._since(elapsed), 3),
        }

    def _since(self, elapsed: float) -> float:
        """Seconds a step since the last call: as old as what the meter has measured of the method."""
        steps, seconds = self.steps - self._read[0], elapsed - self._read[1]
        self._read = (self.steps, elapsed)
        return seconds / max(1, steps)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Left out as well, and counted for what is still to come."""
        start = time.perf_counter()
        with self.paused():
            yield
        count, seconds = self._evaluations
        self._evaluations = (count + 1, seconds + time.perf_counter() - start)

    @contextmanager
    def paused(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._out += time.perf_counter() - start

    @contextmanager
    def waiting(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start
