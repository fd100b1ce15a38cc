"""How fast a run is, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Images per second as total images over total time; evaluations, a method's start and checkpoints left out."""

    def __init__(self) -> None:
        self.images = 0
        self.steps = 0
        self.passes = 0.0  # image passes of these steps, as far as they have been read from the meter
        self.looked = 0  # images of the evaluations, and of a method's passes over the target
        self._read = (0, 0.0)  # steps and seconds when it was read last
        self._start = time.perf_counter()
        self._out = 0.0
        self._stopped: float | None = None  # since when it is paused
        self._waited = 0.0
        self._looking = 0.0  # seconds of those images

    def left(self, steps: int, images: int) -> float:
        """Seconds that so many steps, and so many images to look at, will take. Until the first are measured, an image
        that is looked at counts as a third of one that is learned from."""
        elapsed = self._elapsed()
        an_image = self._an_image() if self.looked else elapsed / max(1, self.images) / 3
        return steps * elapsed / max(1, self.steps) + images * an_image

    def speed(self) -> tuple[float, float]:
        """Seconds that an image pass of training takes, and an image of the evaluations; the first again where none is
        measured."""
        a_pass = self._elapsed() / max(1.0, self.passes)
        return a_pass, self._an_image() if self.looked else a_pass

    def _elapsed(self) -> float:
        """Seconds of training."""
        now = time.perf_counter() if self._stopped is None else self._stopped
        return now - self._start - self._out

    def _an_image(self) -> float:
        """Seconds that one takes to be looked at, those of a pass that is under way counted."""
        under_way = 0.0 if self._stopped is None else time.perf_counter() - self._stopped
        return (self._looking + under_way) / self.looked

    def read(self) -> dict[str, float]:
        elapsed = self._elapsed()
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
        before = self._out
        with self.paused():
            yield
        self._looking += self._out - before

    @contextmanager
    def paused(self) -> Iterator[None]:
        start = self._stopped = time.perf_counter()
        yield
        self._out += time.perf_counter() - start
        self._stopped = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start
