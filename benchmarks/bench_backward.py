"""The gradients of the loss to features, mu_g and mu_f: kernels/backward.py against autograd over the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch import config as functorch

from benchmarks.common import Case, cases, measure


def _prepare(case: Case) -> Any:
    x = case.inputs()
    assert x.get.prior  # as a step before leaves it
    run = torch.compile(x.get, dynamic=False) if case.row == "compile" else x.get
    with functorch.patch(donated_buffer=False):  # the saved tensors are read again in every round
        return run(x.features, x.weight, x.labels).loss, (x.features, x.weight, x.get.mu_f)


def _gradients(prepared: Any) -> object:
    loss, leaves = prepared
    return torch.autograd.grad(loss, leaves, retain_graph=True)


@cases("default")
def test_backward(benchmark: Any, case: Case) -> None:
    with functorch.patch(donated_buffer=False):
        measure(benchmark, "backward", case, _prepare, _gradients, compiled=_gradients)
