"""What many runs will take together: steps, image passes, and how long that is, at a pace that was measured or assumed.

Images and steps are counted, not drawn: a list that loses its bad files, or shots, is a little shorter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fastget.common.text import counted
from fastget.config import Config
from fastget.data.datasets import DATA_SETS
from fastget.data.lists import ImageList
from fastget.data.published import read_domain
from fastget.planning.counts import Sizes, sizes_of
from fastget.planning.show import duration
from fastget.training.passes import Passes

ASSUMED = 3000.0  # image passes a second of a GPU, in words, where nothing was measured


class Pace(NamedTuple):
    """How fast runs are, and where that is from."""

    rate: float  # image passes a second, of one of them
    beside: float  # seconds a run, beside its steps: its start, its end
    how: str


def sizes_in(config: Config, source: str, target: str) -> Sizes:
    """Of these domains: as the root holds them, or as published. ValueError if it does not."""
    data, images = dataclasses.replace(config.data, source=source, target=target), None
    if data.root is not None:
        images = len(images_of(data.name, data.root, source)), len(images_of(data.name, data.root, target))
    return sizes_of(dataclasses.replace(config, data=data), images, None)


@lru_cache
def images_of(data: str, root: str, domain: str) -> ImageList:
    """A published data set's, as the root has them."""
    return read_domain(DATA_SETS[data], Path(root), domain)


def pace_of(done: Sequence[tuple[Passes, float]], measure: Callable[[], Pace] | None) -> Pace:
    """By the runs that are done, and the seconds of their steps; else measured; else assumed."""
    seconds = sum(spent for _, spent in done)
    if seconds > 0:
        rate = sum(passes.training for passes, _ in done) / seconds
        return Pace(rate, 0, f"as in the {counted(len(done), 'job')} done before; measured")
    why = "nothing was measured"
    if measure is not None:
        try:
            return measure()
        except (ValueError, OSError) as error:
            why = f"the run to measure it failed: {error}"
    return Pace(ASSUMED, 0, f"assumed, of a recent GPU: {why}")


def forecast(left: Sequence[Passes], jobs: int, pace: Pace, at_a_time: int) -> list[str]:
    """Lines for people: what there is to run, and how long it may take."""
    total = sum(passes.total for passes in left)
    steps = sum(passes.plan.max_steps for passes in left)
    span = duration((total / pace.rate + jobs * pace.beside) / at_a_time)
    start = f", and {pace.beside:.1f} s for its start and end" if pace.beside else ""
    return [
        f"to run: {counted(jobs, 'job')}, {steps:,} steps, {total:,} image passes (an image that is learned from "
        "counts as three)",
        f"time: about {span}: {at_a_time} at a time, each at {pace.rate:,.0f} image passes a second{start} "
        f"({pace.how})",
    ]
