"""Eqs. (7)-(9) with their gradients against the reference in float64."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from fastget import kernels, reference
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import (
    GRADIENT_TOLERANCE,
    LOSS_TOLERANCE,
    SHAPES,
    Batch,
    batch,
    error,
    half_rule,
    nan_filled,
    relative,
    weight_of,
    with_gradients,
)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] > 1], ids=str)
def test_soft_cross_entropy_matches_reference(shape: tuple[int, int, int]) -> None:
    x = batch(*shape)
    labels = torch.rand(shape[0], shape[1], generator=torch.Generator().manual_seed(3))  # rows that do not sum to 1
    labels[0] = 0

    def run(ops: ModuleType, f: Tensor, p: Tensor, prior: Tensor) -> Tensor:
        out: Tensor = ops.soft_cross_entropy(f, p, prior, 0.15, labels)
        return out

    with nan_filled():
        loss, found = with_gradients(kernels, run, x, torch.tensor(2.5))
    wanted, expected = with_gradients(reference, run, x.to(torch.float64), torch.tensor(2.5))
    assert error(loss, wanted) < LOSS_TOLERANCE * max(1.0, float(wanted))
    for d, slope in zip(found, expected, strict=True):
        assert relative(d, slope) < GRADIENT_TOLERANCE


def test_labels_are_constants() -> None:
    x = batch(4, 5, 6)
    labels = weight_of(x).softmax(1).requires_grad_()
    assert not kernels.soft_cross_entropy(x.features, x.mu_g, x.pi.log(), 0.2, labels).requires_grad


def test_strided_inputs() -> None:
    x = batch(8, 11, 9)
    labels = weight_of(x).softmax(1)
    loss = kernels.soft_cross_entropy(x.features, x.mu_g, x.pi.log(), 0.2, labels)
    laid = [t.T.contiguous().T for t in (x.features, x.mu_g, labels)]
    assert torch.equal(kernels.soft_cross_entropy(laid[0], laid[1], x.pi.log(), 0.2, laid[2]), loss)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype: torch.dtype) -> None:
    x = batch(13, 21, 40)
    labels = weight_of(x).softmax(1)

    def run(ops: ModuleType, y: Batch) -> list[Tensor]:
        features, prototypes = (t.clone().requires_grad_() for t in (y.features, y.mu_g))
        loss = ops.soft_cross_entropy(features, prototypes, x.pi.log().to(features), 0.15, labels.to(features))
        return [loss.detach(), *torch.autograd.grad(loss, (features, prototypes))]

    half_rule(run, x, dtype, tolerance=1e-5)


def test_addresses_and_order() -> None:
    x = batch(19, 67, 33).leaves("features", "mu_g")
    prior, labels = x.pi.log().requires_grad_(), weight_of(x).softmax(1)
    with check_addresses():
        kernels.soft_cross_entropy(x.features, x.mu_g, prior, 0.2, labels).backward()

    def run() -> tuple[Tensor, ...]:
        def loss(ops: ModuleType, f: Tensor, p: Tensor, q: Tensor) -> Tensor:
            out: Tensor = ops.soft_cross_entropy(f, p, q, 0.2, labels)
            return out

        value, slopes = with_gradients(kernels, loss, x, torch.tensor(1.0))
        return (value, *slopes)

    assert_order_free(run, seeds=(1,))
