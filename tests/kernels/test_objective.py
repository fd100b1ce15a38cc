"""The C-step and the losses against the reference in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fastget import kernels, reference
from fastget.kernels.logits import Scales
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import (
    LOSS_TOLERANCE,
    SHAPES,
    Batch,
    batch,
    check_gradients,
    check_loss,
    error,
    gradients,
    half_rule,
    nan_filled,
    step_inputs,
)


def losses(
    x: Batch, tau: float, gammas: tuple[float, float], **options: Any
) -> tuple[kernels.Objective, reference.Objective]:
    with nan_filled():
        out = kernels.objective(kernels.expectation(*step_inputs(x), tau, **options), *gammas)
    return out, reference.objective(reference.expectation(*step_inputs(x.to(torch.float64)), tau, **options), *gammas)


@pytest.mark.parametrize("gammas", [(0.5, 0.2), (0.0, 1.0), (1.0, 0.0)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_reference(shape: tuple[int, int, int], gammas: tuple[float, float]) -> None:
    out, expected = losses(batch(*shape), 0.15, gammas)
    for name, value, wanted in zip(out._fields, out, expected, strict=True):
        assert value.shape == ()
        assert value.dtype == torch.float32
        assert error(value, wanted) <= LOSS_TOLERANCE * max(1.0, abs(float(wanted))), name


@pytest.mark.parametrize("present", [67, 51, 20], ids=["in full", "faded", "off"])
def test_rebalancing_fades_with_the_priors_spread(present: int) -> None:
    """Eq. (6'), losses and gradients, with 67, 51 or 20 of 67 classes in the prior."""
    pi = torch.full((67,), 1e-4)
    pi[:present] = 1
    x = replace(batch(37, 67, 33), pi=pi / pi.sum())
    out, expected = losses(x, 0.15, (0.5, 0.2), rebalance_gate=True)
    for name, value, wanted in zip(out._fields, out, expected, strict=True):
        assert error(value, wanted) <= LOSS_TOLERANCE * max(1.0, abs(float(wanted))), name
    paper, _ = losses(x, 0.15, (0.5, 0.2))
    assert (error(out.structure_g, paper.structure_g) == 0) == (present == 67)
    for ops, y in ((kernels, x), (reference, x.to(torch.float64))):
        exponent = float(ops.expectation(*step_inputs(y), 0.15, rebalance_gate=True).exponent)
        assert exponent == pytest.approx({67: 0.5, 51: 0.5 * (51 / 67 - 0.65) / 0.2, 20: 0.0}[present], abs=5e-3)
    _, found = gradients(kernels, x, 0.15, rebalance_gate=True)
    _, torchs = gradients(reference, x, 0.15, rebalance_gate=True)
    _, exact = gradients(reference, x.to(torch.float64), 0.15, rebalance_gate=True)
    check_gradients(found, torchs, exact, 0.15)


@pytest.mark.parametrize("tau", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("norm", [1e-6, 1e4])
def test_temperatures_and_norms(tau: float, norm: float) -> None:
    x = batch(21, 35, 70, norm=norm)
    out, expected = losses(x, tau, (0.5, 0.5))
    plain = reference.objective(reference.expectation(*step_inputs(x), tau), 0.5, 0.5)
    for name, value, torchs, wanted in zip(out._fields, out, plain, expected, strict=True):
        check_loss(value, torchs, wanted, name)


@pytest.mark.parametrize("shape", [(700, 3, 5), (4100, 2, 3)], ids=str)
def test_large_batches(shape: tuple[int, int, int]) -> None:
    """Each another entry of the table of rows. The logits are the reference's: only the C-step is run here."""
    x = batch(*shape)
    r = reference.expectation(*step_inputs(x.to(torch.float64)), 0.3)
    expected = reference.objective(r, 0.5, 0.5)
    made: dict[str, Any] = {
        k: v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in r._asdict().items()
    }
    made["exponent"] = torch.tensor(0.5)  # which the kernels say, where the reference has None
    rows, classes = torch.ones(shape[0]), torch.ones(shape[1])  # norms are for the gradient
    e = kernels.Expectation(**made, scales=Scales(x.pi.log(), rows, classes, classes))
    with nan_filled():
        out = kernels.objective(e, 0.5, 0.5)
    assert error(out.loss, expected.loss) <= LOSS_TOLERANCE * float(expected.loss)
    assert error(out.structure_g, expected.structure_g) <= 4e-6


def test_one_class_batch_and_an_empty_column() -> None:
    x = batch(8, 6, 10)
    x = replace(x, features=x.mu_g[:1].expand(8, -1) * 3, pi=torch.full((6,), 1 / 6))
    out, expected = losses(x, 0.01, (0.5, 0.5))
    assert error(out.loss, expected.loss) <= LOSS_TOLERANCE * max(1.0, float(expected.loss))
    e = kernels.expectation(*step_inputs(x), 0.01)
    e.colsum_g[2] = 0.0  # a column of mass zero takes no part in Q, and makes no NaN
    r = reference.expectation(*step_inputs(x.to(torch.float64)), 0.01)
    r.colsum_g[2] = 0.0
    assert error(kernels.objective(e, 0.0, 0.0).loss_g, reference.objective(r, 0.0, 0.0).loss_g) < LOSS_TOLERANCE


def test_column_sums_of_many_ranks_are_used() -> None:
    x = batch(9, 12, 7)
    e, r = kernels.expectation(*step_inputs(x), 0.2), reference.expectation(*step_inputs(x.to(torch.float64)), 0.2)
    extra = torch.rand(12)
    e.statistics[:12] += extra
    r.statistics[:12] += extra.double()
    out, expected = kernels.objective(e, 0.3, 0.3), reference.objective(r, 0.3, 0.3)
    assert error(out.loss_g, expected.loss_g) < LOSS_TOLERANCE * 5
    alone = reference.objective(reference.expectation(*step_inputs(x), 0.2), 0.3, 0.3)
    assert error(out.loss_g, alone.loss_g) > 1e-4


def test_a_non_finite_feature_shows_in_the_loss() -> None:
    x = batch(5, 7, 9)
    x.features[2, 4] = float("nan")
    out = kernels.objective(kernels.expectation(*step_inputs(x), 0.15), 0.5, 0.5)
    assert not torch.isfinite(out.loss)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype: torch.dtype) -> None:
    half_rule(
        lambda ops, x: [ops.objective(ops.expectation(*step_inputs(x), 0.15), 0.5, 0.5).loss],
        batch(13, 21, 40), dtype,
    )  # fmt: skip


def test_an_expectation_of_the_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="another backend"):
        kernels.objective(reference.expectation(*step_inputs(batch(3, 4, 5)), 0.1), 0.5, 0.5)  # type: ignore[arg-type]


def test_addresses_and_order() -> None:
    x = batch(37, 67, 9)
    e = kernels.expectation(*step_inputs(x), 0.15)
    with check_addresses():
        kernels.objective(e, 0.5, 0.5)
    assert_order_free(lambda: tuple(kernels.objective(e, 0.5, 0.5)))
