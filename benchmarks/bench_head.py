"""GeT's head on a CPU: the reference and the fused path against its eight matrix products alone, interleaved.

Forward, backward and memory, one thread. Each round runs all of them, so that what else the machine does meets all
alike; the ratio of the lower fifths says what each costs beside the products. With `-s` it is printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fastget import reference
from fastget.kernels.audit.step import StepInputs
from fastget.methods.get import fused
from fastget.selftest.kernels import make_inputs

ROUNDS = {(36, 65, 256): 200, (256, 345, 2048): 12}
DEFAULT = {"prior_estimate": "nearest", "prior_cap": True, "prior_gate": True, "rebalance_gate": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {"prior_estimate": "likelihood"},
    "default": DEFAULT,
    "default, partial": DEFAULT,  # of a prior that a third of the classes share
}


def products(x: StepInputs, slope: torch.Tensor) -> None:
    """Three posteriors, their gradients to both sides but for mu's, and the class sums."""
    f, mu, mu_g, mu_f = (t.detach() for t in (x.features, x.mu, x.mu_g, x.mu_f))
    for m in (mu, mu_g, mu_f):
        f @ m.T
    for m in (mu_g, mu_f):
        slope @ m
        slope.T @ f
    slope.T @ f


def step(ops: Any, x: StepInputs, pi: torch.Tensor, options: dict[str, Any]) -> None:
    x.pi.copy_(pi)  # one batch again and again would narrow it to the batch's own classes
    e = ops.expectation(x.features, x.mu, x.mu_g, x.mu_f, x.pi, 0.15, labels=x.labels, **options)
    torch.autograd.grad(ops.objective(e, 0.5, 0.5).loss, (x.features, x.mu_g, x.mu_f))
    ops.update_memory_(x.mu, x.pi, x.health, e, 0.01, 0.01)


def lower_fifth(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each, all of them in every round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: sorted(found)[len(found) // 5] for name, found in times.items()}


@pytest.mark.parametrize("recipe", OPTIONS)
@pytest.mark.parametrize("shape", ROUNDS, ids=lambda shape: "x".join(map(str, shape)))
def test_head(benchmark: Any, shape: tuple[int, int, int], recipe: str) -> None:
    B, C, D = shape
    x = make_inputs(B, C, D, torch.device("cpu"), torch.float32)
    slope, options, pi = torch.randn(B, C), OPTIONS[recipe], x.pi.clone()
    if recipe.endswith("partial"):
        pi[C // 3 :] = 1e-4
        pi /= pi.sum()
    runs: dict[str, Callable[[], object]] = {
        "reference": lambda: step(reference, x, pi, options),
        "fused": lambda: step(fused, x, pi, options),
        "products": lambda: products(x, slope),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = lower_fifth(runs, ROUNDS[shape])
        benchmark.pedantic(runs["fused"], rounds=5, warmup_rounds=1)
    finally:
        torch.set_num_threads(threads)
    ratios = {name: found[name] / found["products"] for name in ("reference", "fused")}
    benchmark.extra_info.update({f"{name}_ms": 1e3 * seconds for name, seconds in found.items()})
    benchmark.extra_info.update({f"{name}_over_products": ratio for name, ratio in ratios.items()})
    shown = ", ".join(f"{name} {1e3 * found[name]:.3f} ms ({ratio:.1f}x)" for name, ratio in ratios.items())
    print(f"\n{shape} {recipe}: products {1e3 * found['products']:.3f} ms, {shown}")
