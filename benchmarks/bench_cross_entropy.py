"""The soft cross-entropy of one head by itself, forward: kernels/equations/cross_entropy.py against the reference."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import TAU, Case, cases, measure
from fastget import reference


def _prepare(case: Case) -> Any:
    x = case.inputs()
    return x, reference.posterior(x.features, x.mu, x.pi.log(), TAU), x.pi.log()


@cases
def test_cross_entropy(benchmark: Any, case: Case) -> None:
    cross_entropy = case.ops.soft_cross_entropy

    def run(prepared: Any) -> object:
        x, labels, log_prior = prepared
        return cross_entropy(x.features, x.mu_g, log_prior, TAU, labels)

    with torch.no_grad():
        measure(benchmark, "cross_entropy", case, _prepare, run)
