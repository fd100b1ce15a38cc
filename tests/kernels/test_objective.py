"""The C-step and the losses against the reference in float64."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from fastget import kernels, reference
from fastget.kernels.logits import Scales
from fastget.methods.get.prior import PriorRule
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import (
    LOSS_TOLERANCE,
    RULES,
    SHAPES,
    Batch,
    batch,
    check_gradients,
    check_loss,
    error,
    gradients,
    half_rule,
    nan_filled,
    prior_of,
    step_inputs,
    with_spread,
)


def made(
    ops: ModuleType, x: Batch, tau: float, gammas: tuple[float, float] = (0.5, 0.5),
    rule: reference.Rule = reference.paper_prior, **options: Any,
) -> reference.Objective:  # fmt: skip
    out: reference.Objective = ops.objective(
        ops.expectation(*step_inputs(x, rule), tau, **options), prior_of(x, rule), *gammas
    )
    return out


def losses(x: Batch, *given: Any, **options: Any) -> tuple[reference.Objective, reference.Objective]:
    """The kernels' and the reference's in float64."""
    with nan_filled():
        out = made(kernels, x, *given, **options)
    return out, made(reference, x.to(torch.float64), *given, **options)


@pytest.mark.parametrize("gammas", [(0.5, 0.2), (0.0, 1.0), (1.0, 0.0)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_reference(shape: tuple[int, int, int], gammas: tuple[float, float]) -> None:
    out, expected = losses(batch(*shape), 0.15, gammas)
    for name, value, wanted in zip(out._fields, out, expected, strict=True):
        assert value.shape == ()
        assert value.dtype == torch.float32
        assert error(value, wanted) <= LOSS_TOLERANCE * max(1.0, abs(float(wanted))), name


@pytest.mark.parametrize("rule", ["default", "partial"])
@pytest.mark.parametrize("spread", [0.8, 0.62, 0.3], ids=["l is 0", "between", "l is 1"])
def test_rebalancing_has_the_priors_powers(spread: float, rule: str) -> None:
    """Eq. (6'), losses and gradients."""
    x, of = with_spread(batch(37, 67, 33), spread), RULES[rule]
    out, expected = losses(x, 0.15, (0.35, 0.2), rule=of)
    for name, value, wanted in zip(out._fields, out, expected, strict=True):
        assert error(value, wanted) <= LOSS_TOLERANCE * max(1.0, abs(float(wanted))), name
    e, taken = kernels.expectation(*step_inputs(x, of), 0.15), prior_of(x, of)
    paper = kernels.objective(e, reference.Prior(taken.log_pi, *reference.paper_prior(x.pi)[1:]), 0.35, 0.2)
    assert (error(out.structure_g, paper.structure_g) < 1e-3) == (spread == 0.8 and rule == "default")
    _, found = gradients(kernels, x, 0.15, rule=of)
    _, torchs = gradients(reference, x, 0.15, rule=of)
    _, exact = gradients(reference, x.to(torch.float64), 0.15, rule=of)
    check_gradients(found, torchs, exact, 0.15)


@pytest.mark.parametrize("tau", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("norm", [1e-6, 1e4])
def test_temperatures_and_norms(tau: float, norm: float) -> None:
    x = batch(21, 35, 70, norm=norm)
    out, expected = losses(x, tau, (0.5, 0.5))
    plain = made(reference, x, tau)
    for name, value, torchs, wanted in zip(out._fields, out, plain, expected, strict=True):
        check_loss(value, torchs, wanted, name)


@pytest.mark.parametrize("shape", [(700, 3, 5), (4100, 2, 3)], ids=str)
def test_large_batches(shape: tuple[int, int, int]) -> None:
    """Each another entry of the table of rows. The logits are the reference's: only the C-step is run here."""
    x = batch(*shape)
    y = x.to(torch.float64)
    r = reference.expectation(*step_inputs(y), 0.3)
    expected = reference.objective(r, prior_of(y), 0.5, 0.5)
    narrow: dict[str, Any] = {
        k: v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in r._asdict().items()
    }
    rows, classes = torch.ones(shape[0]), torch.ones(shape[1])  # norms are for the gradient
    e = reference.Expectation(**narrow | {"scales": Scales(x.pi.log(), rows, classes, classes)})
    with nan_filled():
        out = kernels.objective(e, prior_of(x), 0.5, 0.5)
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
    prior = prior_of(x)
    assert (
        error(kernels.objective(e, prior, 0.0, 0.0).loss_g, reference.objective(r, prior, 0.0, 0.0).loss_g)
        < LOSS_TOLERANCE
    )


def test_column_sums_of_many_ranks_are_used() -> None:
    x = batch(9, 12, 7)
    e, r = kernels.expectation(*step_inputs(x), 0.2), reference.expectation(*step_inputs(x.to(torch.float64)), 0.2)
    extra = torch.rand(12)
    e.statistics[:12] += extra
    r.statistics[:12] += extra.double()
    prior = prior_of(x)
    out, expected = kernels.objective(e, prior, 0.3, 0.3), reference.objective(r, prior, 0.3, 0.3)
    assert error(out.loss_g, expected.loss_g) < LOSS_TOLERANCE * 5
    alone = made(reference, x, 0.2, (0.3, 0.3))
    assert error(out.loss_g, alone.loss_g) > 1e-4


def test_a_non_finite_feature_shows_in_the_loss() -> None:
    x = batch(5, 7, 9)
    x.features[2, 4] = float("nan")
    out = made(kernels, x, 0.15)
    assert not torch.isfinite(out.loss)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype: torch.dtype) -> None:
    half_rule(lambda ops, x: [made(ops, x, 0.15).loss], batch(13, 21, 40), dtype)


def test_an_expectation_of_another_backend_is_refused() -> None:
    x = batch(3, 4, 5)
    of_reference, of_kernels = (ops.expectation(*step_inputs(x), 0.1) for ops in (reference, kernels))
    with pytest.raises(ValueError, match="this Expectation is the reference's"):
        kernels.objective(of_reference, prior_of(x), 0.5, 0.5)
    with pytest.raises(ValueError, match="this Expectation is the kernels'"):
        reference.objective(of_kernels, prior_of(x), 0.5, 0.5)


def test_addresses_and_order() -> None:
    x = with_spread(batch(37, 67, 9), 0.62)
    e, prior = kernels.expectation(*step_inputs(x, PriorRule()), 0.15), prior_of(x, PriorRule())
    with check_addresses():
        kernels.objective(e, prior, 0.5, 0.5)
    assert_order_free(lambda: tuple(kernels.objective(e, prior, 0.5, 0.5)))
