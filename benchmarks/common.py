"""What the kernels' benchmarks share: shapes, rows, inputs, timing.

Each has three rows per shape and recipe, side by side: the reference in eager mode, the reference under torch.compile,
and the Triton kernels. A phase of a step is timed on what GeT hands to it. Inputs rotate, so that no run finds its own
in the cache. On a GPU the figures of a CUDA graph (p20, p50, p80) and the share of the card's bandwidth stand in
`extra_info`: event pairs around a short kernel time the host. On a CPU the Triton row is skipped: a time in the
interpreter says nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch

from fastget import kernels, reference
from fastget.kernels.audit.step import StepInputs, step
from fastget.kernels.audit.traffic import SIZES
from fastget.kernels.launch import record
from fastget.selftest.kernels import RECIPES, bandwidth_limit, make_inputs

PHASES = ("expectation", "objective", "update_memory_")
ROWS = ("eager", "compile", "triton")
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SHAPES = SIZES if GPU else SIZES[:2]  # the third is seconds a call on a CPU
ROTATE = 4  # sets of inputs
ROUNDS = 50 if GPU else 5

Run = Callable[[Any], object]


class Call(NamedTuple):
    """What GeT hands to one phase of a step."""

    args: tuple[Any, ...]
    options: dict[str, Any]


class Case(NamedTuple):
    """One row of one group."""

    shape: tuple[int, int, int]  # (B, C, D)
    row: str
    recipe: str = "default"

    @property
    def ops(self) -> ModuleType:
        """The module whose functions are timed."""
        return kernels if self.row == "triton" else reference

    def inputs(self) -> StepInputs:
        """GeT in the middle of a run."""
        backend = "triton" if self.row == "triton" else "reference"
        dtype = torch.bfloat16 if GPU else torch.float32
        return make_inputs(*self.shape, DEVICE, dtype, self.recipe, backend=backend)

    def calls(self) -> dict[str, Call]:
        """One step of GeT: what it hands to each of PHASES."""
        return calls_of(self.inputs(), self.ops)

    def phase(self, name: str) -> Run:
        """A phase as a function of its Call."""
        function = getattr(self.ops, name)
        return lambda call: function(*call.args, **call.options)


def calls_of(x: StepInputs, ops: ModuleType) -> dict[str, Call]:
    """What GeT hands to each phase in a step."""
    calls: dict[str, Call] = {}

    def noting(name: str) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            calls[name] = Call(args, options)
            return getattr(ops, name)(*args, **options)

        return run

    assert x.get.prior  # made here, not in the step
    noted = SimpleNamespace(**{name: noting(name) for name in PHASES})
    with torch.enable_grad(), patch.object(x.get, "_ops", lambda _: noted):
        step(x)
    return calls


def cases(*recipes: str) -> Callable[[Callable[..., None]], Any]:
    """Parametrise a benchmark over shapes, recipes and rows, the rows of a shape together."""
    found = [Case(shape, row, recipe) for shape in SHAPES for recipe in recipes or RECIPES for row in ROWS]
    return pytest.mark.parametrize("case", found, ids=lambda c: f"{'x'.join(map(str, c.shape))}-{c.recipe}-{c.row}")


def measure(
    benchmark: Any,
    stem: str,
    case: Case,
    prepare: Callable[[Case], Any],
    run: Run,
    compiled: Run | None = None,  # the row under torch.compile, where it is not torch.compile(run)
) -> None:
    """Time `run(prepare(case))`. What `prepare` does is not timed."""
    benchmark.group = f"{stem} {'x'.join(map(str, case.shape))} {case.recipe}"
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
