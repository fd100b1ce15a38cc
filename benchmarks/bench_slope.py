"""The gradient of a given slope of one head's logits: kernels/equations/slope.py against autograd."""

from __future__ import annotations

from typing import Any

import torch
from fastget.kernels.equations.slope import logit_gradients, one_head

from benchmarks.common import TAU, Case, cases, measure
from fastget import reference


def _prepare(case: Case) -> Any:
    x = case.inputs()
    features, mu_g = x.features.detach().requires_grad_(), x.mu_g.detach().requires_grad_()
    dS = torch.randn(len(features), len(mu_g), device=features.device)
    if case.row != "triton":
        return reference.cosine(features, mu_g) / TAU, features, mu_g, dS
    S, _, *scales = one_head(features.detach(), mu_g.detach(), x.pi.log(), TAU)
    return (features.detach(), mu_g.detach(), S, *scales, dS)


def _reference(prepared: Any) -> object:
    S, features, mu_g, dS = prepared
    return torch.autograd.grad(S, (features, mu_g), dS.to(S.dtype), retain_graph=True)


def _triton(prepared: Any) -> object:
    features, mu_g, S, log_prior, norm, norm_p, dS = prepared
    return logit_gradients(features, mu_g, S, log_prior, norm, norm_p, dS, TAU, [True, True, False])


@cases
def test_slope(benchmark: Any, case: Case) -> None:
    run = _triton if case.row == "triton" else _reference
    measure(benchmark, "slope", case, _prepare, run, compiled=_reference)
