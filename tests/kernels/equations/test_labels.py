"""Eqs. (10), (5) and (2*) by themselves against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from fastget import kernels, reference
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import P_TOLERANCE, error, nan_filled, posteriors, relative

SHAPES = [(1, 2), (5, 3), (37, 67), (9, 600)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mixed_labels_match_reference(shape: tuple[int, int]) -> None:
    Q, y, weight = posteriors(*shape).requires_grad_(), torch.randint(0, shape[1], shape[:1]), torch.randn(shape)
    with nan_filled():
        found = kernels.mixed_labels(Q, y, 0.3)
        (found * weight).sum().backward()
    assert error(found.detach(), reference.mixed_labels(Q.detach().double(), y, 0.3)) < P_TOLERANCE
    assert Q.grad is not None
    assert relative(Q.grad, 0.7 * weight.double()) < 1e-6


@pytest.mark.parametrize("shape", [*SHAPES, (520, 3)], ids=str)
def test_structure_matches_reference(shape: tuple[int, int]) -> None:
    Q, P = posteriors(*shape), torch.softmax(torch.randn(shape), 1)
    P[:, shape[1] // 2] = 0  # where Q is 0 too: the term is 0, whatever P is
    with nan_filled():
        found = kernels.structure_loss(Q, P)
    assert error(found, reference.structure_loss(Q.double(), P.double())) < 2e-6


@pytest.mark.parametrize("C", [2, 65, 1500])
def test_shrink_prior_matches_reference(C: int) -> None:
    for pi in (torch.full((C,), 1 / C), (torch.rand(C) ** 6).clamp_min(1e-8)):
        pi = pi / pi.sum()
        with nan_filled():
            found = kernels.shrink_prior(pi)
        assert error(found, reference.shrink_prior(pi.double())) < 1e-6


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("C", [2, 65, 1500])
def test_cap_prior_matches_reference(C: int, gate: bool) -> None:
    skewed, one = (torch.rand(C) ** 6).clamp_min(1e-8), torch.zeros(C)
    one[C // 2] = 1
    for pi in (torch.full((C,), 1 / C), torch.arange(C, 2.0 * C), skewed, one):
        pi = pi / pi.sum()
        with nan_filled():
            found = kernels.cap_prior(pi, gate)
        wanted = reference.cap_prior(pi.double(), gate)
        assert relative(found, wanted) < 2e-6
        assert error(found.log(), wanted.log()) < 5e-6
    assert kernels.cap_prior(torch.tensor([0.5, float("nan")]), gate).isnan().all()


@pytest.mark.parametrize("C", [2, 65, 1500])
def test_rebalance_exponent_matches_reference(C: int) -> None:
    one = torch.zeros(C)
    one[C // 2] = 1
    for present in (C, int(0.8 * C), int(0.7 * C), 1):
        pi = torch.full((C,), 1e-5)
        pi[:present] = 1
        pi = pi / pi.sum()
        with nan_filled():
            found = kernels.rebalance_exponent(pi)
        assert error(found, reference.rebalance_exponent(pi.double())) < 2e-6
    assert float(kernels.rebalance_exponent(one)) == 0
    assert kernels.rebalance_exponent(torch.tensor([0.5, float("nan")])).isnan()


def test_strided_inputs() -> None:
    P, Q = posteriors(6, 8), posteriors(7, 8)[:6]
    y = torch.randint(0, 8, (6, 2))
    laid = P.T.contiguous().T
    assert torch.equal(kernels.mixed_labels(laid, y[:, 0], 0.4), kernels.mixed_labels(P, y[:, 0].contiguous(), 0.4))
    assert torch.equal(kernels.structure_loss(Q, laid + 0.1), kernels.structure_loss(Q, P + 0.1))


def test_no_silent_loss_of_a_gradient() -> None:
    with pytest.raises(ValueError, match="no gradient"):
        kernels.structure_loss(torch.ones(2, 3, requires_grad=True), torch.ones(2, 3))
    with pytest.raises(ValueError, match="no gradient"):
        kernels.shrink_prior(torch.ones(3, requires_grad=True))
    with pytest.raises(ValueError, match="no gradient"):
        kernels.cap_prior(torch.ones(3, requires_grad=True))


def test_addresses_and_order() -> None:
    Q, y, weight = posteriors(21, 67).requires_grad_(), torch.randint(0, 67, (21,)), torch.randn(21, 67)
    with check_addresses():
        (kernels.mixed_labels(Q, y, 0.5) * weight).sum().backward()
        kernels.structure_loss(Q.detach(), Q.detach())
        kernels.shrink_prior(Q[0].detach().contiguous())
        kernels.cap_prior(Q[0].detach().contiguous())
    P = Q.detach()
    assert_order_free(
        lambda: (kernels.mixed_labels(P, y, 0.5), kernels.structure_loss(P, P), kernels.shrink_prior(P[0]))
    )
