"""Which images a batch holds, and how each is cropped: a pure function of (seed, stream, step).

Philox is a counter-based generator, so that any step is reached without walking to it, and every rank draws the
same global batch and takes its slice. Raw 64-bit draws are used, since numpy may change how it shuffles.

Shapes: B images in the global batch, b = B / world in a rank's slice.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_ORDER, _VIEW, _REPLACE, _SECOND = 0, 1, 2, 3  # what a generator's draws are for


@dataclass(frozen=True)
class Draw:
    """One rank's slice of a batch."""

    index: NDArray[np.int64]  # (b,) into the list
    x: NDArray[np.int64]  # (b,) left edge of the crop, in pixels
    y: NDArray[np.int64]  # (b,) its top edge
    flip: NDArray[np.bool_]  # (b,)
    second: Draw | None = None  # the same images, cropped another time (MixMatch)

    @property
    def views(self) -> list[Draw]:
        """This one, and the second where there is one."""
        return [self, self.second] if self.second else [self]

    def rows(self, keep: NDArray[np.int64]) -> Draw:
        """Some of the rows."""
        second = self.second.rows(keep) if self.second else None
        return Draw(self.index[keep], self.x[keep], self.y[keep], self.flip[keep], second)


class TrainSampler:
    """Endless shuffled batches: each epoch a permutation with its tail dropped, another one every epoch.

    A list shorter than the batch is repeated, each time in another order, until it fills the batch.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        seed: int,
        stream: str,
        margin: int,
        flip: bool,
        rank: int = 0,
        world: int = 1,
        views: Literal[1, 2] = 1,
    ) -> None:
        if length < 1:
            raise ValueError(f"the {stream} list holds no image")
        if batch_size % world:
            raise ValueError(
                f"the batch of {batch_size} images cannot be cut into {world} equal parts: "
                f"set train.batch_size to a multiple of {world}"
            )
        self.length, self.batch_size, self.margin, self.flip, self.views = length, batch_size, margin, flip, views
        self.steps_per_epoch = max(1, length // batch_size)
        self._key = np.array([seed, zlib.crc32(stream.encode())], dtype=np.uint64)
        self._slice = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
        self._order = lru_cache(maxsize=2)(self._shuffle)

    def __call__(self, step: int) -> Draw:
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        index = self._order(epoch)[start : start + self.batch_size]
        second = self._view(_SECOND, step, index) if self.views == 2 else None
        return self._view(_VIEW, step, index, second)

    def replacement(self, step: int, row: int, attempt: int) -> int:
        """The image that stands in for the one in this rank's row, when that cannot be read; `attempt` counts from 0.

        A pure function as well, and the same on any number of ranks."""
        draws = self._raw(_REPLACE, step, attempt + 1, row=self._slice.start + row)
        return int(draws[attempt] % np.uint64(self.length))

    def _view(self, purpose: int, step: int, index: NDArray[np.int64], second: Draw | None = None) -> Draw:
        left, top, flip = self._raw(purpose, step, 3 * self.batch_size).reshape(3, -1)
        reach = np.uint64(self.margin + 1)
        mirrored = (flip >> np.uint64(63)).astype(bool) & self.flip
        cut = self._slice
        x, y = ((edge % reach).astype(np.int64)[cut] for edge in (left, top))
        return Draw(index[cut], x, y, mirrored[cut], second)

    def _shuffle(self, epoch: int) -> NDArray[np.int64]:
        repeats = -(-self.batch_size // self.length)  # 1, unless the list is shorter than a batch
        keys = self._raw(_ORDER, epoch, repeats * self.length).reshape(repeats, self.length)
        return np.argsort(keys, axis=1, kind="stable").reshape(-1)

    def _raw(self, purpose: int, index: int, count: int, row: int = 0) -> NDArray[np.uint64]:
        counter = np.array([0, row, index, purpose], dtype=np.uint64)
        return np.random.Philox(key=self._key, counter=counter).random_raw(count)


def fixed_draw(length: int, size: int) -> NDArray[np.int64]:
    """(min(size, length),) places of a list in their order, the same whatever a run's seed and number of ranks: no
    random number of the run is used. A smaller draw is a part of a larger one."""
    return np.sort(np.random.default_rng(0).permutation(length)[:size])


class EvalSampler:
    """Every image exactly once, in order, cropped at the centre; ranks take consecutive shares. Or a few images alone,
    `chosen` by their places."""

    views = 1

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        margin: int,
        rank: int = 0,
        world: int = 1,
        chosen: NDArray[np.int64] | None = None,
    ) -> None:
        self.batch_size, self.margin, self.chosen = batch_size, margin, chosen
        length = length if chosen is None else len(chosen)
        self.start, self.stop = rank * length // world, (rank + 1) * length // world
        self.steps = -(-(self.stop - self.start) // batch_size)
        self.most_steps = -(-length // (world * batch_size))  # of any rank

    def __call__(self, step: int) -> Draw:
        if step >= self.steps:
            raise StopIteration
        start = self.start + step * self.batch_size
        index = np.arange(start, min(start + self.batch_size, self.stop))
        index = index if self.chosen is None else self.chosen[index]
        centre = np.full(len(index), round(self.margin / 2))
        return Draw(index, centre, centre, np.zeros(len(index), dtype=bool))
