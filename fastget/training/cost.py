"""What a step costs, and what the method adds to it: image passes, time, memory.

An image pass is one image once through the network. An image that is learned from counts as three, since a backward
pass costs about two forward ones; an image that is only looked at, or goes through a frozen backbone, counts as one.
Passes over the whole target, at a method's start or an epoch's, are evaluations and not in it.

The method's time is that of its term, its labels, its memory, a second look and a step of its own. Its part of the
backward pass is not in it, and that of the target images in the forward pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import nn

from fastget.common.timing import Timer

OWN = ("method", "memory", "second look", "own step")  # the phases that are the method's
LEARNED, LOOKED_AT = 3, 1


class Cost(NamedTuple):
    """Of a step, on the whole."""

    passes: dict[str, float]  # by what went through the network: source, target, second look ...
    method_ms: float

    def words(self) -> str:
        """As the progress line has it."""
        total = sum(self.passes.values())
        shares = ", ".join(f"{what} {100 * count / total:.0f} %" for what, count in self.passes.items())
        return f"{total:,.0f} image passes a step ({shares})"


class Meter(Timer):
    """Counts image passes, and times the method's phases without making the host wait: the device's own clock is read
    when the losses are."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.passes: dict[str, int] = {}
        self.steps = 0
        self.seconds_of_method = 0.0
        self._inside = False
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def phase(self, name: str) -> AbstractContextManager[object]:
        return self._time_method() if name in OWN and not self._inside else nullcontext()

    def images(self, what: str, rows: int, trained: bool) -> None:
        self.passes[what] = self.passes.get(what, 0) + rows * (LEARNED if trained else LOOKED_AT)

    def count(self) -> None:
        """A step is done."""
        self.steps += 1

    def read(self, ranks: int = 1) -> Cost:
        """The means since the last call, the passes of all ranks. Waits for the device."""
        for start, end in self._events:
            end.synchronize()
            self.seconds_of_method += start.elapsed_time(end) / 1000
        steps = max(1, self.steps)
        cost = Cost({what: ranks * n / steps for what, n in self.passes.items()}, 1000 * self.seconds_of_method / steps)
        self.passes, self.steps, self.seconds_of_method, self._events = {}, 0, 0.0, []
        return cost

    @contextmanager
    def _time_method(self) -> Iterator[None]:
        self._inside = True
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            yield  # an event in a graph has no time: replays of the method's phases are not told apart
        elif self.device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch leaves it untyped
            start.record()
            yield
            end.record()
            self._events.append((start, end))
        else:
            began = time.perf_counter()
            yield
            self.seconds_of_method += time.perf_counter() - began
        self._inside = False


def bytes_of(module: nn.Module) -> int:
    """Of its parameters and buffers."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
