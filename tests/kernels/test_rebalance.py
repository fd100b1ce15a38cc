"""Eqs. (5), (6), (10) and (2*) by themselves against the reference in float64."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from fastget import kernels, reference
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import GRADIENT_TOLERANCE, P_TOLERANCE, error, nan_filled, relative

SHAPES = [(1, 2), (5, 3), (37, 67), (9, 600)]


def posteriors(B: int, C: int) -> Tensor:
    P = torch.softmax(3 * torch.randn(B, C, generator=torch.Generator().manual_seed(B)), 1)
    P[:, C // 2] = 0  # a column of mass zero
    return P


def slopes(ops: ModuleType, P: Tensor, colsum: Tensor | None, weight: Tensor) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in (P, colsum) if t is not None]
    Q = ops.rebalance(*leaves)
    return [Q.detach(), *torch.autograd.grad((Q * weight.to(Q.dtype)).sum(), leaves)]


@pytest.mark.parametrize("given", [False, True], ids=["own", "given"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rebalance_matches_reference(shape: tuple[int, int], given: bool) -> None:
    P, weight = posteriors(*shape), torch.randn(shape)
    colsum = torch.rand(shape[1]) * shape[0] if given else None
    if colsum is not None:
        colsum[0] = 0
    with nan_filled():
        Q, *found = slopes(kernels, P, colsum, weight)
    wanted, *expected = slopes(reference, P.double(), None if colsum is None else colsum.double(), weight)
    assert error(Q, wanted) < P_TOLERANCE
    for d, slope in zip(found, expected, strict=True):
        assert error(d, slope) < GRADIENT_TOLERANCE * max(float(slope.abs().max()), 1e-3)


def test_rows_without_mass_give_zeros() -> None:
    P = torch.zeros(4, 3)
    P[0, 1] = 1
    assert kernels.rebalance(P).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_types_in_and_out(dtype: torch.dtype) -> None:
    P = posteriors(7, 9).to(dtype).requires_grad_()
    Q = kernels.rebalance(P)
    assert Q.dtype == torch.float32
    assert error(Q.detach(), reference.rebalance(P.detach().double())) < P_TOLERANCE
    Q[:, 0].sum().backward()  # type: ignore[no-untyped-call]
    assert P.grad is not None and P.grad.dtype == dtype


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mixed_labels_match_reference(shape: tuple[int, int]) -> None:
    Q, y, weight = posteriors(*shape).requires_grad_(), torch.randint(0, shape[1], shape[:1]), torch.randn(shape)
    with nan_filled():
        found = kernels.mixed_labels(Q, y, 0.3)
        (found * weight).sum().backward()  # type: ignore[no-untyped-call]
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


def test_strided_inputs() -> None:
    P, Q = posteriors(6, 8), posteriors(6, 8)
    y = torch.randint(0, 8, (6, 2))
    laid = P.T.contiguous().T
    assert torch.equal(kernels.rebalance(laid), kernels.rebalance(P))
    assert torch.equal(kernels.mixed_labels(laid, y[:, 0], 0.4), kernels.mixed_labels(P, y[:, 0].contiguous(), 0.4))
    assert torch.equal(kernels.structure_loss(Q, laid + 0.1), kernels.structure_loss(Q, P + 0.1))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="float64"):
        kernels.rebalance(torch.ones(2, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        kernels.rebalance(torch.ones(2, 3), torch.ones(2))
    with pytest.raises(ValueError, match="no gradient"):
        kernels.structure_loss(torch.ones(2, 3, requires_grad=True), torch.ones(2, 3))


def test_addresses_and_order() -> None:
    P, weight = posteriors(21, 67).requires_grad_(), torch.randn(21, 67)
    y = torch.randint(0, 67, (21,))
    with check_addresses():
        (kernels.rebalance(P) * weight).sum().backward()  # type: ignore[no-untyped-call]
        (kernels.rebalance(P, torch.rand(67)) * weight).sum().backward()  # type: ignore[no-untyped-call]
        (kernels.mixed_labels(P, y, 0.5) * weight).sum().backward()  # type: ignore[no-untyped-call]
        kernels.structure_loss(P.detach(), P.detach())
        kernels.shrink_prior(P[0].detach().contiguous())
    assert_order_free(lambda: (*slopes(kernels, P, None, weight), kernels.structure_loss(P.detach(), P.detach())))
