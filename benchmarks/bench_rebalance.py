"""Rebalancing by itself, and its gradient: kernels/equations/rebalance.py against reference.rebalance."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Case, cases, measure
from fastget import reference


def _prepare(case: Case) -> Any:
    x = case.inputs()
    prior = x.get.prior
    P = reference.posterior(x.features, x.weight, prior.log_pi, x.get.tau).detach().requires_grad_()
    return P, prior.exponent, prior.power, torch.rand_like(P)


@cases()
def test_rebalance(benchmark: Any, case: Case) -> None:
    rebalance = case.ops.rebalance

    def run(prepared: Any) -> object:
        P, exponent, power, dQ = prepared
        Q = rebalance(P, None, exponent, power)
        return Q, torch.autograd.grad(Q, P, dQ)

    measure(benchmark, "rebalance", case, _prepare, run)
