"""Rebalancing by itself, forward: kernels/equations/rebalance.py against reference.rebalance."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import TAU, Case, cases, measure
from fastget import reference


def _prepare(case: Case) -> Any:
    x = case.inputs()
    return reference.posterior(x.features, x.mu_g, x.pi.log(), TAU)


@cases
def test_rebalance(benchmark: Any, case: Case) -> None:
    rebalance = case.ops.rebalance
    with torch.no_grad():
        measure(benchmark, "rebalance", case, _prepare, lambda P: rebalance(P))
