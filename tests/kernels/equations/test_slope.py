"""The gradient of a given slope of one head's logits against autograd over the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastget import reference
from fastget.kernels.equations.slope import logit_gradients, one_head
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import SHAPES, Batch, batch, check_gradients, nan_filled


def made(x: Batch, dS: Tensor, needs: list[bool]) -> list[Tensor]:
    S, _, norm, norm_p = one_head(x.features, x.mu_g, x.pi.log(), 0.15)
    return logit_gradients(x.features, x.mu_g, S, x.pi.log(), norm, norm_p, dS, 0.15, needs)


def wanted(x: Batch, dS: Tensor) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in (x.features, x.mu_g, x.pi.log())]
    S = leaves[2] + reference.cosine(leaves[0], leaves[1]) / 0.15
    return list(torch.autograd.grad(S, leaves, dS.to(S.dtype)))


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] > 1], ids=str)
def test_matches_reference(shape: tuple[int, int, int]) -> None:
    x, dS = batch(*shape), torch.randn(shape[:2])
    with nan_filled():
        found = made(x, dS, [True, True, True])
    check_gradients(found, wanted(x, dS), wanted(x.to(torch.float64), dS), 0.15)


@pytest.mark.parametrize("only", [0, 1, 2])
def test_only_what_is_asked_for_is_made(only: int) -> None:
    x, dS = batch(19, 35, 40), torch.randn(19, 35)
    (found,) = made(x, dS, [i == only for i in range(3)])
    assert torch.equal(found, made(x, dS, [True, True, True])[only])


def test_addresses_and_order() -> None:
    x, dS = batch(37, 35, 70), torch.randn(37, 35)
    with check_addresses():
        made(x, dS, [True, True, True])
    assert_order_free(lambda: tuple(made(x, dS, [True, True, True])), seeds=(1,))
