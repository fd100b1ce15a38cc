"""Eqs. (4) and (3) in one call, with gradients, against the reference in float64."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fastget import kernels, reference
from fastget.kernels.launch import record
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import GRADIENT_TOLERANCE, Batch, batch, error, nan_filled, relative

FLOOR = 1e-2  # some entries lie below it: they have no slope


def made(ops: ModuleType, x: Batch, gamma_pi: float = 0.1) -> list[Tensor]:
    """mu and pi after the batch, and the gradients of a sum of both to mu, pi, features and P_bar."""
    draw = torch.Generator().manual_seed(1)
    P_bar = torch.rand(len(x.pi), generator=draw).to(x.pi.dtype)
    weights = [torch.randn(t.shape, generator=draw) for t in (x.mu, x.pi)]
    leaves = [t.detach().clone().requires_grad_() for t in (x.mu, x.pi, x.features, P_bar / P_bar.sum())]
    mu, pi, features, mean = leaves
    out = ops.scatter_update(mu, pi, features, x.labels, mean, 0.3, gamma_pi, FLOOR)
    total = sum((o * w.to(o.dtype)).sum() for o, w in zip(out, weights, strict=True))
    slopes: Any = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [*(o.detach() for o in out), *slopes]


@pytest.mark.parametrize("gamma_pi", [0.1, 0.0])
@pytest.mark.parametrize("shape", [(1, 2, 1), (37, 67, 33)], ids=str)
def test_matches_reference(shape: tuple[int, int, int], gamma_pi: float) -> None:
    x = batch(*shape)
    with nan_filled():
        mu, pi, *slopes = made(kernels, x, gamma_pi)
    wanted_mu, wanted_pi, *expected = made(reference, x.to(torch.float64), gamma_pi)
    assert error(mu, wanted_mu) < 1e-6
    assert error(pi, wanted_pi) < 1e-7
    assert gamma_pi != 0 or torch.equal(pi, x.pi)
    for d, slope in zip(slopes, expected, strict=True):
        assert error(d, slope) <= GRADIENT_TOLERANCE * float(slope.abs().max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_features(dtype: torch.dtype) -> None:
    x = batch(13, 21, 40)
    features = x.features.to(dtype).requires_grad_()
    mu, _ = kernels.scatter_update(x.mu, x.pi, features, x.labels, x.pi, 0.3, 0.1)
    wanted, _ = reference.scatter_update(x.mu, x.pi, features.detach().float(), x.labels, x.pi, 0.3, 0.1)
    assert relative(mu.detach(), wanted) < 1e-6
    mu.sum().backward()
    assert features.grad is not None
    assert features.grad.dtype == dtype


def test_one_launch_that_changes_nothing_given() -> None:
    x = batch(9, 7, 12)
    mu, pi = x.mu.clone(), x.pi.clone()
    with record() as launches:
        kernels.scatter_update(x.mu, x.pi, x.features, x.labels, x.pi, 0.3, 0.1)
    assert [launch.name for launch in launches] == ["scatter_kernel"]
    assert torch.equal(mu, x.mu)
    assert torch.equal(pi, x.pi)


def test_refusals() -> None:
    x = batch(4, 5, 6)
    with pytest.raises(ValueError, match=r"P_bar must have shape \(5,\), got \(4,\)"):
        kernels.scatter_update(x.mu, x.pi, x.features, x.labels, x.pi[:4], 0.3, 0.1)
    with pytest.raises(ValueError, match="labels must be int64 or int32"):
        kernels.scatter_update(x.mu, x.pi, x.features, x.labels.float(), x.pi, 0.3, 0.1)


def test_addresses_and_order() -> None:
    x = batch(37, 35, 20)
    with check_addresses():
        kernels.scatter_update(x.mu, x.pi, x.features, x.labels, x.pi, 0.3, 0.1)
    assert_order_free(lambda: tuple(made(kernels, x)), seeds=(1,))
