"""How long a launch takes on a card, from what its programs ask for. A model, with these assumptions:

- A launch takes as long as the slowest of six things that run beside each other: HBM (each tensor once), L2 (every
  program's loads and stores), the port of the busiest multiprocessor to L2, the matrix cores, the special functions
  (exponentials, logarithms), and latency.
- The last program of a grid keeps only its own multiprocessor busy: throughput counts by the busiest one, which has
  ceil(programs / multiprocessors) of them.
- Latency is the launch itself, and per wave a chain of loop trips. A trip that waits for memory takes TRIP; one of a
  pipelined loop of n stages has n - 1 under way, and only the first is waited for in full. Of the loads outside of
  loops the prior's are counted, each a TRIP; the others are taken to be under way beside them.
- Multiprocessors hold as many programs as 16 warps allow (128 registers a thread), which is what waves are of.
- Matrix products of fewer than 64 rows go by mma.sync, at 0.6 of the rate on a Hopper; float32 in full by FFMA.

Not in it: what conversions, reductions and shared memory cost inside a program. It ranks configurations, and says what
bounds a launch; `fastget tune` measures on a card.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastget.kernels.audit.step import launches_of
from fastget.kernels.audit.work import Work, work_of

LAUNCH = 1.0e-6  # seconds from one kernel of a CUDA graph to the next
TRIP = 0.7e-6  # seconds from a load to what is made of it
PORT = 64  # bytes a clock that a multiprocessor takes from L2
SPECIAL = 16  # special functions a clock of a multiprocessor
WARPS = 16  # resident on a multiprocessor
NARROW = 0.6  # of the matrix cores' rate, without warp-group products


@dataclass(frozen=True)
class Card:
    """Rates of a data sheet, or measured and published."""

    name: str
    multiprocessors: int
    clock: float  # Hz
    hbm: float  # bytes per second
    l2: float  # bytes per second
    rates: dict[str, float]  # dense operations per second of the matrix cores by operand; "ieee": of FFMA
    groups: bool = False  # whether it has products of warp groups, which 64 rows and more are made by


CARDS = {
    card.name: card
    for card in (
        Card("A100", 108, 1.41e9, 1.94e12, 4.0e12, {"bf16": 312e12, "tf32": 156e12, "ieee": 19.5e12}),
        Card("H100", 132, 1.755e9, 3.35e12, 5.5e12, {"bf16": 800e12, "tf32": 400e12, "ieee": 60e12}, groups=True),
    )
}


@dataclass(frozen=True)
class Times:
    """Seconds of one launch by what could bound it."""

    work: Work
    hbm: float
    l2: float
    port: float
    matrix: float
    special: float
    latency: float

    @property
    def seconds(self) -> float:
        return max(self.hbm, self.l2, self.port, self.matrix, self.special, self.latency)

    @property
    def bound(self) -> str:
        """What it is that takes so long."""
        names = ("hbm", "l2", "port", "matrix", "special", "latency")
        return max(names, key=lambda n: float(getattr(self, n)))


def times(work: Work, card: Card) -> Times:
    """The model of one launch."""
    busiest = math.ceil(work.programs / card.multiprocessors)
    share = busiest / work.programs  # of the work, on the busiest multiprocessor
    matrix = 0.0
    if work.kind:
        rate = card.rates[work.kind] / card.multiprocessors
        if card.groups and work.rows < 64 and work.kind != "ieee":
            rate *= NARROW
        matrix = 2 * work.multiply_adds * share / rate
    waves = math.ceil(busiest / max(1, WARPS // work.warps))
    after = (work.trips - 1) * TRIP / max(1, work.stages - 1)
    return Times(
        work=work,
        hbm=work.once / card.hbm,
        l2=work.asked / card.l2,
        port=work.asked * share / (PORT * card.clock),
        matrix=matrix,
        special=work.special * share / (SPECIAL * card.clock),
        latency=LAUNCH + waves * ((1 + work.waits) * TRIP + after),
    )


def step_times(B: int, C: int, D: int, dtype: torch.dtype, card: Card, recipe: str = "default") -> list[Times]:
    """The launches of a step with the configurations that would be chosen now; where pi has a rule, of an l over 0."""
    launches = launches_of(B, C, D, dtype, recipe)
    narrow = launches[-1].constexprs["TRUSTED"]
    return [times(work_of(launch, narrow), card) for launch in launches]


def total(found: Sequence[Times]) -> float:
    """Seconds of launches one after the other."""
    return sum(t.seconds for t in found)
