"""GeT's head on a CPU: the reference's step against its eight matrix products alone, interleaved.

Forward, backward and memory, one thread. Each round runs both, so that what else the machine does meets both alike; the
ratio of the lower fifths says what the step costs beside the products. With `-s` it is printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.results import one_thread
from fastget.kernels.audit.step import StepInputs
from fastget.selftest.kernels import RECIPES, forward_backward, make_inputs

ROUNDS = {(36, 65, 256): 200, (256, 345, 2048): 12}


def products(x: StepInputs, slope: torch.Tensor) -> None:
    """Three posteriors, their gradients to both sides but for mu's, and the class sums."""
    f, mu, mu_g, mu_f = (t.detach() for t in (x.features, x.get.mu, x.weight, x.get.mu_f))
    for m in (mu, mu_g, mu_f):
        f @ m.T
    for m in (mu_g, mu_f):
        slope @ m
        slope.T @ f
    slope.T @ f


def lower_fifth(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each, all of them in every round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: sorted(found)[len(found) // 5] for name, found in times.items()}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("shape", ROUNDS, ids=lambda shape: "x".join(map(str, shape)))
def test_head(benchmark: Any, shape: tuple[int, int, int], recipe: str) -> None:
    B, C, D = shape
    x = make_inputs(B, C, D, "cpu", recipe=recipe, backend="reference")
    slope, pi = torch.randn(B, C), x.get.pi.clone()

    def step() -> None:
        x.get.pi.copy_(pi)  # one batch again and again would narrow it to the batch's own classes
        forward_backward(x)

    with one_thread():
        found = lower_fifth({"step": step, "products": lambda: products(x, slope)}, ROUNDS[shape])
        benchmark.pedantic(step, rounds=5, warmup_rounds=1)
    ratio = found["step"] / found["products"]
    benchmark.extra_info.update({f"{name}_ms": 1e3 * seconds for name, seconds in found.items()}, ratio=ratio)
    step_ms, products_ms = 1e3 * found["step"], 1e3 * found["products"]
    print(f"\n{shape} {recipe}: products {products_ms:.3f} ms, step {step_ms:.3f} ms ({ratio:.1f}x)")
