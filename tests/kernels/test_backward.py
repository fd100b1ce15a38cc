"""The fused gradient against autograd of the reference in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastget import kernels, reference
from fastget.kernels.launch import record
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import (
    GRADIENT_SLACK,
    GRADIENT_TOLERANCE,
    SHAPES,
    Batch,
    Half,
    batch,
    check_gradients,
    gradients,
    half_rule,
    nan_filled,
    prior_of,
    relative,
    step_inputs,
)


def judge(x: Batch, tau: float, gammas: tuple[float, float] = (0.5, 0.5)) -> list[torch.Tensor]:
    """The kernels' gradients, after they have been held against float64 and PyTorch's float32."""
    found, plain, exact = (
        gradients(ops, y, tau, gammas)[1] for ops, y in ((kernels, x), (reference, x), (reference, x.to(torch.float64)))
    )
    check_gradients(found, plain, exact, tau)
    return found


@pytest.mark.parametrize("gammas", [(0.5, 0.2), (0.0, 1.0)], ids=str)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] > 1], ids=str)
def test_matches_reference(shape: tuple[int, int, int], gammas: tuple[float, float]) -> None:
    x = batch(*shape)
    with nan_filled():
        _, found = gradients(kernels, x, 0.15, gammas, weights=(3.0, -0.4, 0.7))
    plain, exact = ((gradients(reference, y, 0.15, gammas, (3.0, -0.4, 0.7))[1]) for y in (x, x.to(torch.float64)))
    check_gradients(found, plain, exact, 0.15)


@pytest.mark.parametrize("weights", [(0.0, 2.0, 0.0), (0.0, 0.0, 2.0), (1.0, 0.0, 1.0)], ids=str)
@pytest.mark.parametrize("need", ["features", "mu_g", "mu_f"])
def test_each_loss_and_each_input_alone(weights: tuple[float, ...], need: str) -> None:
    x = batch(14, 9, 20)
    _, (expected,) = gradients(reference, x.to(torch.float64), 0.15, weights=weights, needs=(need,))
    with record() as launches:
        _, (found,) = gradients(kernels, x, 0.15, weights=weights, needs=(need,))
    if (need, weights[:2]) in {("mu_f", (0.0, 2.0)), ("mu_g", (0.0, 0.0))}:
        assert found is None, "no path from this loss to this input"
        assert float(expected.abs().max()) == 0
        return
    assert relative(found, expected) < GRADIENT_TOLERANCE
    (backward,) = [launch for launch in launches if launch.name == "backward_kernel"]
    assert len(backward.writes) == 1, "only the gradient that is required is written"


@pytest.mark.parametrize("norm", [1e-6, 1e4])
@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_temperatures_and_norms(tau: float, norm: float) -> None:
    x = batch(21, 35, 70, norm=norm)
    judge(x, tau)


def test_large_tiles() -> None:
    x = batch(520, 5, 6)  # beyond 512 rows the tables change
    judge(x, 0.15)


def test_vectors_without_a_length() -> None:
    x = batch(7, 6, 12)
    x.features[2] = 0
    x.mu_g[4] = 0
    x.mu_f[1] = 1e-14
    found = judge(x, 0.15)
    assert float(found[0][2].abs().max()) == float(found[1][4].abs().max()) == float(found[2][1].abs().max()) == 0


def test_confident_posteriors() -> None:
    x = batch(6, 5, 8)
    x = replace(x, features=x.mu_g[[0, 1, 2, 3, 4, 0]] * 7, pi=torch.full((5,), 0.2))
    judge(x, 0.04, (0.0, 0.0))


def flat(B: int, C: int, D: int) -> Batch:
    """A prior that says nothing and features far from every prototype: P is flat, and near Q."""
    return replace(batch(B, C, D), pi=torch.full((C,), 1 / C))


@pytest.mark.parametrize("tau", [0.05, 0.15])
def test_flat_posteriors_without_hard_labels(tau: float) -> None:
    """The slopes P - Q are small throughout: that of the likeliest class must not be a sum of the others' errors."""
    x = flat(36, 345, 64)
    judge(x, tau, (0.0, 0.0))


def test_strided_inputs_and_contiguous_gradients() -> None:
    x = batch(11, 13, 10)
    _, expected = gradients(kernels, x, 0.2)
    f, g, h = (t.T.contiguous().T.requires_grad_() for t in (x.features, x.mu_g, x.mu_f))
    out = kernels.objective(kernels.expectation(f, x.mu, g, h, x.pi.log(), 0.2), prior_of(x), 0.5, 0.5)
    (3 * out.loss).backward()
    for leaf, wanted in zip((f, g, h), expected, strict=True):
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype: torch.dtype) -> None:
    half_rule(lambda ops, x: gradients(ops, x, 0.15)[1], batch(13, 21, 40), dtype)
    half_rule(lambda ops, x: gradients(ops, x, 0.05)[1], batch(18, 67, 33), dtype)
    x = batch(13, 21, 40)
    x = replace(x, features=x.features.to(dtype), mu_g=x.mu_g.to(dtype))
    _, found = gradients(kernels, x, 0.15)
    _, exact = gradients(reference, x.to(torch.float32), 0.15)
    assert [d.dtype for d in found] == [dtype, dtype, torch.float32]
    _, at_type = gradients(Half(dtype), x.to(dtype), 0.15)  # type: ignore[arg-type]
    assert 0 < relative(found[2], exact[2]) <= relative(at_type[2], exact[2]) + GRADIENT_SLACK, (
        "float32 beside a half type is rounded, and errs less than PyTorch does at that type"
    )


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    B=st.integers(1, 40), C=st.integers(2, 40), D=st.integers(2, 70), tau=st.floats(0.01, 1.0), seed=st.integers(0, 9)
)
def test_drawn_shapes(B: int, C: int, D: int, tau: float, seed: int) -> None:
    x = batch(B, C, D, seed=seed)
    judge(x, tau, (0.4, 0.6))


def test_addresses_and_order() -> None:
    x = batch(37, 67, 33).leaves("features", "mu_g", "mu_f")
    out = kernels.objective(kernels.expectation(*step_inputs(x), 0.15), prior_of(x), 0.5, 0.5)
    with check_addresses():
        (out.loss + out.loss_g).backward()
    small = batch(18, 20, 70)

    def run() -> tuple[Any, ...]:
        return tuple(gradients(kernels, small, 0.15)[1])

    assert_order_free(run, seeds=(1,))


@pytest.mark.parametrize(("shape", "tau"), [((1, 2, 5), 0.05), ((9, 5, 8), 0.05), ((18, 65, 32), 0.04)], ids=str)
def test_confident_posteriors_keep_their_gradient(shape: tuple[int, int, int], tau: float) -> None:
    """Where P is near 1, P - y cancels: PyTorch's float32 gradient is off by percents there, the kernel's is not."""
    x = batch(*shape)
    B, C, _ = shape
    noise = torch.Generator().manual_seed(1)

    def near(value: torch.Tensor) -> torch.Tensor:
        return value + 0.02 * torch.randn(value.shape, generator=noise)

    x = replace(
        x, features=near(x.mu[torch.arange(B) % C]), mu_g=near(x.mu), mu_f=near(x.mu), pi=torch.full((C,), 1 / C)
    )
    _, found = gradients(kernels, x, tau)
    _, plain = gradients(reference, x, tau)
    _, exact = gradients(reference, x.to(torch.float64), tau)
    check_gradients(found, plain, exact)
    for d, p, wanted in zip(found, plain, exact, strict=True):
        assert relative(d, wanted) < GRADIENT_TOLERANCE < relative(p, wanted) or shape[0] > 9, "the cure is at work"


@pytest.mark.parametrize("where", ["features", "mu_g", "mu_f"])
def test_a_nan_is_a_nan_wherever_the_reference_has_one(where: str) -> None:
    """One NaN feature makes every column sum NaN, and with it every row's labels."""
    x = batch(9, 7, 12)
    getattr(x, where)[4, 3] = float("nan")
    _, found = gradients(kernels, x, 0.15)
    _, expected = gradients(reference, x, 0.15)
    assert bool(expected[0].isnan().all())
    for d, wanted in zip(found, expected, strict=True):
        assert torch.equal(d.isnan(), wanted.isnan())
