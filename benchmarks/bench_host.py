"""What a GeT step costs the host: forward, backward and memory, at the batch and width of Office-Home.

    python -m benchmarks.bench_host

Where there is no GPU the kernels are compiled for sm_90 and everything runs but the call into the driver: Triton binds,
specialises and finds what it compiled as on a card, and its launcher hands on to nobody (kernels/audit/driver.py). So
what is counted is Python's and PyTorch's time around the launches. The eager row is the reference at (2, 2, 4): the
same operators, next to no arithmetic. CPU time, one thread, all rows by turns, the least of each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from benchmarks.results import Spent, script
from fastget import GeT
from fastget.common.choices import Backend
from fastget.kernels.audit.driver import without_gpu
from fastget.kernels.launch import interpreting
from fastget.kernels.step import Steps
from fastget.studies.bench import Row

SHAPE = (36, 65, 256)
GPU = torch.cuda.is_available()
EAGER, FUNCTIONS, WORKSPACE, BOUND = (
    "eager: the reference's operators",
    "the kernels' functions, Triton's launcher",
    "a workspace, Triton's launcher",
    "a workspace, launches bound once",
)


class NoSteps(Steps):
    """GeT as it was: the kernels' public functions, their checks and allocations."""

    @staticmethod
    def serves(*tensors: Any) -> bool:
        return False


class Case:
    """A GeT on some backend, and a batch for it."""

    def __init__(self, backend: Backend, steps: Steps | None = None, shape: tuple[int, int, int] = SHAPE) -> None:
        B, C, D = shape
        device = "cuda" if GPU else "cpu"
        torch.manual_seed(0)
        self.get = GeT(C, D, backend=backend, check_now=False, prior_start="estimate").to(device)
        means = torch.randn(C, D, device=device)
        self.features = torch.randn(B, D, device=device, requires_grad=True)
        self.weight = torch.randn(C, D, device=device, requires_grad=True)
        self.labels = torch.randint(C, (B,), device=device)
        with torch.no_grad():
            self.get.mu.copy_(means)
        self.get.start_epoch()
        if steps is not None:  # how it launches, which a card's self-test decides otherwise
            self.get._steps, self.get._place = steps, (backend, self.get.on_cpu, self.features.device)

    def step(self) -> None:
        out = self.get(self.features, self.weight, labels=self.labels)
        torch.autograd.grad(out.loss, (self.features, self.weight, self.get.mu_f))
        self.get.update(self.features.detach(), out)


def cases() -> dict[str, Callable[[], None]]:
    """A step of each row."""
    return {
        EAGER: Case("reference", shape=(2, 2, 4)).step,
        FUNCTIONS: Case("triton", NoSteps(direct=False)).step,
        WORKSPACE: Case("triton", Steps(direct=False)).step,
        BOUND: Case("triton", Steps(direct=True)).step,
    }


@contextmanager
def host() -> Iterator[None]:
    """One thread, and a driver that runs nothing where there is none."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with nullcontext() if GPU else without_gpu():
            yield
    finally:
        torch.set_num_threads(threads)


def spent(runs: dict[str, Callable[[], None]], steps: int, rounds: int) -> dict[str, Spent]:
    """The least per step, all rows in every round; what the device has still to do is waited for between blocks."""
    best = {name: Spent(float("inf"), float("inf")) for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(steps if turn else 2):
                run()
            took = Spent((time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps)
            if GPU:
                torch.cuda.synchronize()
            if turn:
                best[name] = Spent(min(best[name].cpu, took.cpu), min(best[name].wall, took.wall))
    return best


def rows(args: argparse.Namespace) -> list[Row]:
    with host():
        found = spent(cases(), args.steps, args.rounds)
    case, first = "x".join(map(str, SHAPE)), found[EAGER].cpu
    figures = {
        name: {"CPU-us a step": 1e6 * took.cpu, "clock-us a step": 1e6 * took.wall, "against eager": first / took.cpu}
        for name, took in found.items()
    }
    return [Row("host", case, name, figure) for name, figure in figures.items()]


@pytest.mark.skipif(interpreting(), reason="TRITON_INTERPRET is set: a time in the interpreter is not the launcher's")
@pytest.mark.parametrize("row", [EAGER, FUNCTIONS, WORKSPACE, BOUND])
def test_host(benchmark: Any, row: str) -> None:
    benchmark.group = f"host {'x'.join(map(str, SHAPE))}"
    with host():
        benchmark.pedantic(cases()[row], rounds=200, warmup_rounds=3)


if __name__ == "__main__":
    script(__doc__, rows, steps=(10, "steps a block"), rounds=(150, "blocks of each row, by turns"))
