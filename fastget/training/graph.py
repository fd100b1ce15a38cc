"""Whole steps as CUDA graphs: forward, backward, the method's term, the optimizer and the memory, replayed in one call.

A step is made static first: its tensors are copied into buffers that stay where they are, and its numbers that change
(learning rates, w(t), progress) are scalars on the device, filled before each step. Such a step runs as it is a few
times, as real steps of the run; then it is captured, and every later one of its kind is a replay. A step of another
kind (the method has started, a batch has another shape) is captured by itself. Logging, evaluation, the method's start
and checkpoints stay outside, and see the same tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fastget.bases.base import Step
from fastget.common.proven import is_proven
from fastget.common.ranks import Ranks
from fastget.config import Config
from fastget.loading.stream import Batch
from fastget.training.cost import Meter

EAGER = 3  # steps of a kind before it is captured: what is made once must be made, and libraries warm up

Parts = list[dict[str, Tensor]]  # what is logged of a step
Learn = Callable[[Step], Parts]
Capture = Callable[[Callable[[], Parts]], Callable[[], Parts]]  # a function of nothing -> its replay
TENSORS = ("images", "labels", "place", "second")  # of a Batch


def why_not(config: Config, device: torch.device, dtype: torch.dtype, ranks: Ranks, model: Any) -> str:
    """What keeps these steps from being captured, and the way out; empty if nothing does."""
    method, base = type(model.method), type(model)
    if device.type != "cuda":
        return f"CUDA graphs need a GPU, and the run is on {device}"
    if dtype == torch.float16:
        return "float16's loss scaler decides on the host whether to step: use train.precision=bfloat16 or float32"
    if ranks.world > 1:
        return f"a graph holds one device's work, and {ranks.world} ranks share a step: run one process"
    if not base.capturable:
        return f"method.base={config.method.base} draws or counts in Python in its step: use method.base=plain"
    if not method.capturable or "second look" in model.method.extra:
        return f"method.name={config.method.name} is not known to be capturable: use get, or set train.graph=off"
    if config.train.compile:
        return "train.compile makes graphs of its own: use one of the two"
    if config.train.profile:
        return "--profile times the phases of a step, which a graph has none of: use one of the two"
    if config.optim.impl not in ("auto", "fused"):
        return f"optim.impl={config.optim.impl} reads the learning rate on the host: use optim.impl=auto"
    return ""


def graph_of(
    config: Config, device: torch.device, dtype: torch.dtype, ranks: Ranks, model: Any, learn: Learn, meter: Meter,
    optimizer: torch.optim.Optimizer,
) -> StaticSteps | None:  # fmt: skip
    """What train.graph asks for. `auto` takes a graph where it can be and `fastget selftest` has shown on this card
    that it gives the eager step's bits; `on` takes it, or says why not."""
    wanted = config.train.graph
    if wanted == "off":
        return None
    reason = why_not(config, device, dtype, ranks, model)
    if wanted == "auto" and (reason or not is_proven("graph", device)):
        return None
    if reason:
        raise ValueError(f"train.graph=on: {reason}; or set train.graph=off")
    return StaticSteps(learn, optimizer, device, meter, captured)


class StaticSteps:
    """Steps in fixed buffers, captured once for each kind."""

    def __init__(
        self,
        learn: Learn,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        meter: Meter,
        capture: Capture,  # `captured`; or what gives the function back, which runs the same steps without a graph
    ) -> None:
        self._learn, self._optimizer, self._meter, self._capture = learn, optimizer, meter, capture
        self._apart: Callable[[], AbstractContextManager[None]] = _aside if device.type == "cuda" else nullcontext
        # CUDA's fused SGD reads a float32 rate from the device; a CPU's takes the number as it is
        kind = torch.float32 if device.type == "cuda" else torch.float64
        self.rates = [torch.zeros((), dtype=kind, device=device) for _ in optimizer.param_groups]
        self.weight, self.progress = (torch.zeros((), device=device) for _ in range(2))
        self._kinds: dict[Any, _Kind] = {}

    def __call__(self, step: Step) -> Parts:
        """A step of the run."""
        for rate, group in zip(self.rates, self._optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        self.weight.fill_(step.weight)
        self.progress.fill_(step.progress)
        key = (step.adapting, *map(_layout, _tensors(step)))
        if key not in self._kinds:
            self._kinds[key] = _Kind(step)
        kind = self._kinds[key]
        kind.copy(step)
        static = kind.buffers._replace(weight=self.weight, progress=self.progress)
        return [{name: value.clone() for name, value in part.items()} for part in self._run(kind, static)]

    def _run(self, kind: _Kind, static: Step) -> Parts:
        if kind.replay is None and kind.done < EAGER:
            kind.done += 1
            with self._apart():
                return self._once(static)
        if kind.replay is None:
            before = dict(self._meter.passes)
            kind.replay = self._capture(lambda: self._once(static))
            kind.passes = {what: n - before.get(what, 0) for what, n in self._meter.passes.items()}
            self._meter.passes = before
        parts = kind.replay()
        for what, n in kind.passes.items():
            self._meter.passes[what] = self._meter.passes.get(what, 0) + n
        return parts

    def _once(self, static: Step) -> Parts:
        with device_rates(self._optimizer, self.rates):
            return self._learn(static)


class _Kind:
    """The buffers of one kind of step, how often it ran, and its replay once it is captured."""

    def __init__(self, step: Step) -> None:
        self.buffers = step._replace(source=_room(step.source), target=_room(step.target), shots=_room(step.shots))
        self.done = 0
        self.replay: Callable[[], Parts] | None = None
        self.passes: dict[str, int] = {}  # image passes, which a replay does not count by itself

    def copy(self, step: Step) -> None:
        for buffer, x in zip(_tensors(self.buffers), _tensors(step), strict=True):
            if buffer is not None and x is not None:
                buffer.copy_(x, non_blocking=True)


@contextmanager
def device_rates(optimizer: torch.optim.Optimizer, rates: list[Tensor]) -> Iterator[None]:
    """The learning rates as scalars on the device inside; numbers again outside, for logs and checkpoints."""
    numbers = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    try:
        yield
    finally:
        for group, number in zip(optimizer.param_groups, numbers, strict=True):
            group["lr"] = number


@contextmanager
def _aside() -> Iterator[None]:
    """On a stream of its own, as a capture will be: nothing that it leaves is bound to the default one."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def captured(step: Callable[[], Parts]) -> Callable[[], Parts]:
    """The step as a CUDA graph. Capturing runs nothing on the device; what the loaders' threads do there meanwhile is
    no part of it."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        parts = step()

    def replay() -> Parts:
        graph.replay()
        return parts

    return replay


def _tensors(step: Step) -> list[Tensor | None]:
    """All that it trains on, in an order of its own."""
    batches = (step.source, step.target, step.shots)
    return [None if batch is None else getattr(batch, name) for batch in batches for name in TENSORS]


def _room(batch: Batch | None) -> Batch | None:
    """Buffers for such a batch."""
    if batch is None:
        return None
    given = {name: getattr(batch, name) for name in TENSORS}
    room: dict[str, Any] = {name: None if x is None else torch.empty_like(x) for name, x in given.items()}
    return dataclasses.replace(batch, **room, bad=())


def _layout(x: Tensor | None) -> tuple[Any, ...] | None:
    return None if x is None else (x.shape, x.dtype, x.stride())
