"""Class sums, counts and both averages, and the gradients: kernels/equations/scatter.py against the reference's."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Case, cases, measure


def _prepare(case: Case) -> Any:
    get, features, _, labels = case.inputs()
    leaves = get.mu.requires_grad_(), get.pi.requires_grad_(), features
    return leaves, labels, torch.rand_like(get.pi), (torch.rand_like(get.mu), torch.rand_like(get.pi))


@cases("default")
def test_scatter(benchmark: Any, case: Case) -> None:
    update = case.ops.scatter_update

    def run(prepared: Any) -> object:
        leaves, labels, P_bar, grads = prepared
        made = update(*leaves, labels, P_bar, 0.1, 0.1)
        return made, torch.autograd.grad(made, leaves, grads)

    measure(benchmark, "scatter", case, _prepare, run)
