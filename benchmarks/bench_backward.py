"""The gradients of the loss to features, mu_g and mu_f: kernels/backward.py against autograd over the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch import config as functorch

from benchmarks.common import Case, cases, forward, gradients, measure


def _prepare(case: Case) -> Any:
    x = case.inputs()
    run = torch.compile(forward, dynamic=False) if case.row == "compile" else forward
    with functorch.patch(donated_buffer=False):  # the saved tensors are read again in every round
        return run(case.ops, x)[0], x


def _gradients(prepared: Any) -> object:
    loss, x = prepared
    return gradients(loss, x, retain_graph=True)


@cases
def test_backward(benchmark: Any, case: Case) -> None:
    with functorch.patch(donated_buffer=False):
        measure(benchmark, "backward", case, _prepare, _gradients, compiled=_gradients)
