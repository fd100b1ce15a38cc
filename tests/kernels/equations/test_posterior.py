"""Eq. (2) by itself, with its gradients, against the reference in float64."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastget import kernels, reference
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import (
    GRADIENT_TOLERANCE,
    P_TOLERANCE,
    SHAPES,
    Batch,
    batch,
    check_gradients,
    check_P,
    error,
    half_rule,
    nan_filled,
    relative,
    weight_of,
    with_gradients,
)


@pytest.mark.parametrize("tau", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] > 1], ids=str)
def test_posterior_matches_reference(shape: tuple[int, int, int], tau: float) -> None:
    x = batch(*shape)

    def run(ops: ModuleType, f: Tensor, p: Tensor, prior: Tensor) -> Tensor:
        out: Tensor = ops.posterior(f, p, prior, tau)
        return out

    with nan_filled():
        P, found = with_gradients(kernels, run, x, weight_of(x))
    plain, slopes = with_gradients(reference, run, x, weight_of(x))
    wanted, expected = with_gradients(reference, run, x.to(torch.float64), weight_of(x))
    assert P.dtype == torch.float32
    check_P(P, plain, wanted, tau)
    check_gradients(found, slopes, expected, tau)


def test_gradient_at_the_likeliest_of_many_classes() -> None:
    """The gradient comes to one class only, whose P is small: nothing may cancel."""
    x = batch(3, 1000, 32)
    x = replace(x, pi=torch.full((1000,), 1e-3))
    best = reference.posterior(x.features, x.mu_g, x.pi.log(), 1.0).argmax(1)
    weight = torch.zeros(3, 1000).scatter_(1, best[:, None], 1.0)

    def run(ops: ModuleType, f: Tensor, p: Tensor, prior: Tensor) -> Tensor:
        out: Tensor = ops.posterior(f, p, prior, 1.0)
        return out

    _, found = with_gradients(kernels, run, x, weight)
    _, expected = with_gradients(reference, run, x.to(torch.float64), weight)
    for d, slope in zip(found[:2], expected[:2], strict=True):
        assert relative(d, slope) < 1e-6


@pytest.mark.parametrize("only", [0, 1, 2])
def test_only_one_input_requires_a_gradient(only: int) -> None:
    x = batch(9, 12, 10)
    inputs = [x.features, x.mu_g, x.pi.log()]
    inputs[only] = inputs[only].clone().requires_grad_()
    weight = weight_of(x)
    (kernels.posterior(inputs[0], inputs[1], inputs[2], 0.2) * weight).sum().backward()
    exact = [t.detach().double() for t in inputs]
    exact[only].requires_grad_()
    (reference.posterior(exact[0], exact[1], exact[2], 0.2) * weight).sum().backward()
    found, wanted = inputs[only].grad, exact[only].grad
    assert found is not None
    assert wanted is not None
    assert relative(found, wanted) < GRADIENT_TOLERANCE


def test_five_thousand_classes() -> None:
    x = batch(2, 5000, 6)
    P = kernels.posterior(x.features, x.mu_g, x.pi.log(), 0.1)
    wanted = reference.posterior(x.features.double(), x.mu_g.double(), x.pi.double().log(), 0.1)
    assert error(P, wanted) < P_TOLERANCE


def test_a_ruled_out_class_that_is_nearest_costs_no_accuracy() -> None:
    x = batch(6, 40, 9)
    prototypes = -x.features[0] + 0.3 * x.mu_g  # all far from row 0 but one
    prototypes[3] = x.features[0]
    log_prior = x.pi.log()
    log_prior[3] = -torch.inf
    P = kernels.posterior(x.features, prototypes, log_prior, 0.01)
    plain = reference.posterior(x.features, prototypes, log_prior, 0.01)
    check_P(P, plain, reference.posterior(x.features.double(), prototypes.double(), log_prior.double(), 0.01), 0.01)


def test_a_class_that_the_prior_rules_out() -> None:
    x = batch(7, 40, 9)
    log_prior = x.pi.log()
    log_prior[:34] = -torch.inf  # a whole tile of classes
    features = x.features.clone().requires_grad_()
    P = kernels.posterior(features, x.mu_g, log_prior, 0.2)
    (P * weight_of(x)).sum().backward()
    wanted = reference.posterior(x.features.double(), x.mu_g.double(), log_prior.double(), 0.2)
    assert error(P.detach(), wanted) < P_TOLERANCE
    assert features.grad is not None
    assert bool(torch.isfinite(features.grad).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype: torch.dtype) -> None:
    x = batch(13, 21, 40)
    prior = x.pi.log()

    def run(ops: ModuleType, y: Batch) -> list[Tensor]:
        features, prototypes = (t.clone().requires_grad_() for t in (y.features, y.mu_g))
        P = ops.posterior(features, prototypes, prior.to(prototypes), 0.15)
        slopes = torch.autograd.grad((P * weight_of(y).to(P.dtype)).sum(), (features, prototypes))
        assert [d.dtype for d in slopes] == [y.features.dtype] * 2
        return [P.detach(), *slopes]

    half_rule(run, x, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_does_not_change_it(dtype: torch.dtype) -> None:
    x = batch(5, 6, 7)
    args = x.features.to(dtype), x.mu_g, x.pi.log(), 0.3
    plain = kernels.posterior(*args)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(kernels.posterior(*args), plain)


def test_strided_inputs() -> None:
    x = batch(8, 11, 9)
    plain = kernels.posterior(x.features, x.mu_g, x.pi.log(), 0.2)
    prior = torch.stack([x.pi.log(), x.pi], 1)[:, 0]
    laid = kernels.posterior(x.features.T.contiguous().T, x.mu_g.T.contiguous().T, prior, 0.2)
    assert torch.equal(laid, plain)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(B=st.integers(1, 30), C=st.integers(2, 70), D=st.integers(1, 70), tau=st.floats(0.01, 1), seed=st.integers(0, 9))
def test_drawn_shapes(B: int, C: int, D: int, tau: float, seed: int) -> None:
    x = batch(B, C, D, seed=seed)
    with nan_filled():
        P = kernels.posterior(x.features, x.mu_g, x.pi.log(), tau)
    y = x.to(torch.float64)
    plain = reference.posterior(x.features, x.mu_g, x.pi.log(), tau)
    check_P(P, plain, reference.posterior(y.features, y.mu_g, y.pi.log(), tau), tau)


def test_addresses_and_order() -> None:
    x = batch(19, 67, 33).leaves("features", "mu_g")
    prior = x.pi.log().requires_grad_()
    with check_addresses():
        kernels.posterior(x.features, x.mu_g, prior, 0.2)[:, 1].sum().backward()

    def run() -> tuple[Tensor, ...]:
        P, slopes = with_gradients(kernels, lambda ops, f, p, q: ops.posterior(f, p, q, 0.2), x, weight_of(x))
        return (P, *slopes)

    assert_order_free(run)
