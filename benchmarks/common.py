"""What every benchmark shares: shapes, rows, inputs, timing.

Each benchmark has three rows per shape, side by side: the reference in eager mode, the reference under torch.compile,
and the Triton kernels. Inputs rotate, so that no run finds its own in the cache. On a GPU the figures of a CUDA graph
(p20, p50, p80) and the share of the card's bandwidth stand in `extra_info`: event pairs around a short kernel time the
host. On a CPU the Triton row is skipped: a time in the interpreter says nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fastget import kernels, reference
from fastget.kernels.audit.step import StepInputs
from fastget.kernels.audit.traffic import SIZES
from fastget.kernels.launch import record
from fastget.selftest.kernels import bandwidth_limit, make_inputs

TAU, GAMMA_Q = 0.15, 0.5
ROWS = ("eager", "compile", "triton")
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SHAPES = SIZES if GPU else SIZES[:2]  # the third is seconds a call on a CPU
ROTATE = 4  # sets of inputs
ROUNDS = 50 if GPU else 5

Run = Callable[[Any], object]


class Case(NamedTuple):
    """One row of one group."""

    shape: tuple[int, int, int]  # (B, C, D)
    row: str

    @property
    def ops(self) -> ModuleType:
        """The module whose functions are timed."""
        return kernels if self.row == "triton" else reference

    def inputs(self) -> StepInputs:
        B, C, D = self.shape
        x: StepInputs = make_inputs(B, C, D, DEVICE, torch.bfloat16 if GPU else torch.float32)
        return x

    def expectation(self, x: StepInputs) -> Any:
        """The E-step, which later phases start from."""
        return self.ops.expectation(x.features, x.mu, x.mu_g, x.mu_f, x.pi, TAU, labels=x.labels)


def cases(function: Callable[..., None]) -> Callable[..., None]:
    """Parametrise a benchmark over rows and shapes, the rows of a shape together."""
    pairs = [Case(shape, row) for shape in SHAPES for row in ROWS]
    marked: Callable[..., None] = pytest.mark.parametrize(
        "case", pairs, ids=lambda c: f"{'x'.join(map(str, c.shape))}-{c.row}"
    )(function)
    return marked


def measure(
    benchmark: Any,
    stem: str,
    case: Case,
    prepare: Callable[[Case], Any],
    run: Run,
    compiled: Run | None = None,  # the row under torch.compile, where it is not torch.compile(run)
) -> None:
    """Time `run(prepare(case))`. What `prepare` does is not timed."""
    benchmark.group = f"{stem} {'x'.join(map(str, case.shape))}"
    if case.row == "triton" and not GPU:
        pytest.skip("the Triton kernels need a GPU: a time in the interpreter is not their speed")
    torch._dynamo.reset()  # no more graphs than this row's: past a limit torch would run it eagerly
    sets = [prepare(case) for _ in range(ROTATE)]
    timed = run
    if case.row == "compile":
        timed = compiled or torch.compile(run, dynamic=False)
    timed(sets[0])  # compiles
    following = itertools.cycle(sets)

    def synchronised(x: Any) -> None:
        timed(x)
        if GPU:
            torch.cuda.synchronize()

    benchmark.extra_info.update(device=str(DEVICE), dtype=str(torch.bfloat16 if GPU else torch.float32))
    if GPU:
        benchmark.extra_info.update(graph_figures(timed, sets, case))
    benchmark.pedantic(synchronised, setup=lambda: ((next(following),), {}), rounds=ROUNDS, warmup_rounds=1)


def graph_figures(run: Run, sets: list[Any], case: Case) -> dict[str, Any]:
    """Microseconds per call inside a CUDA graph that goes through all inputs, and the share of the bandwidth."""
    from triton.testing import do_bench_cudagraph

    def round_trip() -> None:
        for x in sets:
            run(x)

    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]  # torch leaves it untyped
        low, middle, high = do_bench_cudagraph(round_trip, quantiles=[0.2, 0.5, 0.8])
    p20, p50, p80 = (1e3 * ms / len(sets) for ms in (low, middle, high))
    figures = {"graph_us_p20": p20, "graph_us_p50": p50, "graph_us_p80": p80}
    if case.row == "triton":
        with record() as launches:
            run(sets[0])
        moved, limit = sum(launch.bytes for launch in launches), bandwidth_limit(DEVICE)
        figures |= {"launches": len(launches), "bytes": moved, "bandwidth_limit": limit}
        figures["bandwidth_share"] = moved / (p50 * 1e-6) / limit if limit else float("nan")
    return figures


def forward(ops: ModuleType, x: StepInputs) -> tuple[Tensor, Any]:
    """E, C and the loss: the loss and the expectation."""
    e = ops.expectation(x.features, x.mu, x.mu_g, x.mu_f, x.pi, TAU, labels=x.labels)
    return ops.objective(e, GAMMA_Q, GAMMA_Q).loss, e


def gradients(loss: Tensor, x: StepInputs, retain_graph: bool = False) -> tuple[Tensor, ...]:
    """Those of the features and of both heads' prototypes, not added up."""
    return torch.autograd.grad(loss, (x.features, x.mu_g, x.mu_f), retain_graph=retain_graph)
