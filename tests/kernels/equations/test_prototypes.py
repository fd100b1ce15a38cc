"""Eqs. (3) and (4) by themselves against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastget import kernels, reference
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import batch, error


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_features_are_summed_in_float32(dtype: torch.dtype) -> None:
    x = batch(60, 3, 10)
    half = x.features.to(dtype)
    sums, counts = kernels.class_sums(half, x.labels, 3)
    wanted, wanted_counts = reference.class_sums(half.double(), x.labels, 3)
    assert error(sums, wanted) < 1e-5
    assert torch.equal(counts.double(), wanted_counts)


def test_equations_by_themselves() -> None:
    x = batch(20, 33, 18)
    P_bar = torch.rand(33)
    assert error(kernels.update_prior(x.pi, P_bar, 0.2), reference.update_prior(x.pi.double(), P_bar, 0.2)) < 1e-7
    sums, counts = kernels.class_sums(x.features, x.labels, 33)
    moved = kernels.update_prototypes(x.mu, sums, counts, 0.2)
    assert error(moved, reference.update_prototypes(x.mu.double(), sums.double(), counts, 0.2)) < 1e-6
    assert torch.equal(moved[counts == 0], x.mu[counts == 0])
    out_of_range = x.labels.clone()
    out_of_range[0] = 99
    assert float(kernels.class_sums(x.features, out_of_range, 33)[1].sum()) == 19


def test_refusals() -> None:
    x = batch(4, 5, 6)
    with pytest.raises(ValueError, match="no gradient"):
        kernels.class_sums(x.features.requires_grad_(), x.labels, 5)
    with pytest.raises(ValueError, match=r"counts must have shape \(5,\)"):
        kernels.update_prototypes(x.mu, x.mu, torch.ones(4), 0.1)
    with pytest.raises(ValueError, match=r"P_bar must have shape \(5,\)"):
        kernels.update_prior(x.pi, torch.ones(4), 0.1)


def test_addresses_and_order() -> None:
    x = batch(37, 35, 70)

    def run() -> tuple[Tensor, ...]:
        sums, counts = kernels.class_sums(x.features, x.labels, 35)
        return sums, counts, kernels.update_prototypes(x.mu, sums, counts, 0.1), kernels.update_prior(x.pi, x.pi, 0.1)

    with check_addresses():
        run()
    assert_order_free(run, seeds=(1,))
