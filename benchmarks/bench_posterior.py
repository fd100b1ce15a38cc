"""One posterior by itself, and its gradients: kernels/equations/posterior.py against reference.posterior."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Case, cases, measure


@cases("default")
def test_posterior(benchmark: Any, case: Case) -> None:
    posterior = case.ops.posterior

    def prepare(case: Case) -> Any:
        x = case.inputs()
        leaves = x.features, x.weight, x.get.prior.log_pi.requires_grad_()
        return leaves, x.get.tau, torch.rand(*case.shape[:2], device=x.weight.device)

    def run(prepared: Any) -> object:
        leaves, tau, dP = prepared
        P = posterior(*leaves, tau)
        return P, torch.autograd.grad(P, leaves, dP)

    measure(benchmark, "posterior", case, prepare, run)
