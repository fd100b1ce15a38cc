"""Eq. (6) and its gradient against the reference in float64."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from fastget import kernels, reference
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import GRADIENT_TOLERANCE, P_TOLERANCE, error, nan_filled, posteriors

SHAPES = [(1, 2), (5, 3), (37, 67), (9, 600)]


POWERS = [(0.5, 1.0), (0.2, 2.2), (0.0, 4.0)]  # l is 0, in between, 1


def slopes(
    ops: ModuleType, P: Tensor, colsum: Tensor | None, weight: Tensor, powers: tuple[float, float] = POWERS[0]
) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in (P, colsum) if t is not None]
    Q = ops.rebalance(leaves[0], leaves[1] if colsum is not None else None, *powers)
    return [Q.detach(), *torch.autograd.grad((Q * weight.to(Q.dtype)).sum(), leaves)]


@pytest.mark.parametrize("powers", POWERS, ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["own", "given"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rebalance_matches_reference(shape: tuple[int, int], given: bool, powers: tuple[float, float]) -> None:
    P, weight = posteriors(*shape), torch.randn(shape)
    colsum = torch.rand(shape[1]) * shape[0] if given else None
    if colsum is not None:
        colsum[0] = 0
    with nan_filled():
        Q, *found = slopes(kernels, P, colsum, weight, powers)
    wanted, *expected = slopes(reference, P.double(), None if colsum is None else colsum.double(), weight, powers)
    assert error(Q, wanted) < P_TOLERANCE
    for d, slope in zip(found, expected, strict=True):
        assert error(d, slope) < GRADIENT_TOLERANCE * max(float(slope.abs().max()), 1e-3)


def test_powers_as_tensors_are_the_numbers() -> None:
    P = posteriors(5, 7)
    as_tensors = kernels.rebalance(P, None, torch.tensor(0.2), torch.tensor(2.2))
    assert torch.equal(as_tensors, kernels.rebalance(P, None, 0.2, 2.2))


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
    Q[:, 0].sum().backward()
    assert P.grad is not None
    assert P.grad.dtype == dtype


def test_strided_inputs() -> None:
    P, colsum = posteriors(6, 8), torch.rand(8, 2)
    assert torch.equal(kernels.rebalance(P.T.contiguous().T), kernels.rebalance(P))
    assert torch.equal(kernels.rebalance(P, colsum[:, 0]), kernels.rebalance(P, colsum[:, 0].contiguous()))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="float64"):
        kernels.rebalance(torch.ones(2, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        kernels.rebalance(torch.ones(2, 3), torch.ones(2))


def test_addresses_and_order() -> None:
    P, weight = posteriors(21, 67).requires_grad_(), torch.randn(21, 67)
    with check_addresses():
        (kernels.rebalance(P) * weight).sum().backward()
        (kernels.rebalance(P, torch.rand(67)) * weight).sum().backward()
    assert_order_free(lambda: tuple(slopes(kernels, P, None, weight)))
