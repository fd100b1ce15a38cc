"""The E-step against the reference in float64: logits, y_M, statistics."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastget import kernels, reference
from fastget.methods.get.prior import nearest
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import (
    P_SLACK,
    P_TOLERANCE,
    RULES,
    SHAPES,
    Batch,
    batch,
    check_P,
    error,
    half_rule,
    nan_filled,
    prior_of,
    rebalanced,
    step_inputs,
    with_spread,
)


def check_posteriors(x: Batch, tau: float, e: Any) -> None:
    """P_g, P_f, Q_g, Q_f of an expectation against float64, beside PyTorch's float32."""
    plain = reference.expectation(*step_inputs(x), tau)
    exact = reference.expectation(*step_inputs(x.to(torch.float64)), tau)
    for S, S_plain, S_exact in ((e.S_g, plain.S_g, exact.S_g), (e.S_f, plain.S_f, exact.S_f)):
        check_P(torch.softmax(S, 1), torch.softmax(S_plain, 1), torch.softmax(S_exact, 1), tau)
    prior = prior_of(x)
    for Q, Q_plain, Q_exact in zip(*(rebalanced(each, prior) for each in (e, plain, exact)), strict=True):
        check_P(Q, Q_plain, Q_exact, tau)


@pytest.mark.parametrize("by_labels", [False, True], ids=["y_M", "labels"])
@pytest.mark.parametrize("estimate", [reference.likelihood, nearest], ids=lambda f: f.__name__)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_reference(shape: tuple[int, int, int], rule: str, estimate: Any, by_labels: bool) -> None:
    x = with_spread(batch(*shape), 0.62) if rule == "default" else batch(*shape)
    options = {"estimate": estimate, "labels": x.labels if by_labels else None}
    with nan_filled():
        e = kernels.expectation(*step_inputs(x, RULES[rule]), 0.15, **options)
    r = reference.expectation(*step_inputs(x.to(torch.float64), RULES[rule]), 0.15, **options)
    for S, expected in ((e.S_g, r.S_g), (e.S_f, r.S_f)):
        assert error(torch.softmax(S, 1), torch.softmax(expected, 1)) < P_TOLERANCE
    prior = prior_of(x.to(torch.float64), RULES[rule])
    for Q, expected in zip(rebalanced(e, prior), rebalanced(r, prior), strict=True):
        assert error(Q, expected) < P_TOLERANCE * float(prior.power)
    assert torch.equal(e.y_M, r.y_M)
    assert error(e.statistics, r.statistics) < 2e-6 * max(1, shape[0] / 8)
    assert torch.equal(e.counts.double(), r.counts)
    for view in (e.colsum_g, e.colsum_f, e.prior_sum, e.rows, e.bad_rows, e.counts, e.sums):
        assert view.untyped_storage().data_ptr() == e.statistics.untyped_storage().data_ptr()


def test_another_estimate_is_refused() -> None:
    def mean(cos: torch.Tensor, cos_g: torch.Tensor, tau: float) -> torch.Tensor:
        return cos / tau

    with pytest.raises(ValueError, match=r"estimate must be reference.likelihood or .*nearest, got .* 'mean'"):
        kernels.expectation(*step_inputs(batch(3, 4, 5)), 0.1, estimate=mean)


@pytest.mark.parametrize("norm", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("tau", [0.01, 0.1, 1.0])
def test_temperatures_and_norms(tau: float, norm: float) -> None:
    x = batch(21, 35, 70, norm=norm)
    check_posteriors(x, tau, kernels.expectation(*step_inputs(x), tau))


def test_confident_and_zero_rows() -> None:
    x = batch(6, 5, 8)
    features = x.mu_g[[0, 1, 2, 3, 4, 0]] * 7
    features[5] = 0
    x = replace(x, features=features, pi=torch.full((5,), 0.2))
    e = kernels.expectation(*step_inputs(x), 0.04)
    check_posteriors(x, 0.04, e)
    P = torch.softmax(e.S_g, 1)
    assert P.max() > 1 - 1e-7
    assert error(P[5], x.pi) < P_TOLERANCE


def test_ties_take_the_lowest_class() -> None:
    x = batch(9, 70, 12)
    x.features[:], x.mu[:] = x.features.round(), x.mu[:1].round()  # exact products, whatever adds them up
    x = replace(x, pi=torch.full((70,), 1 / 70))
    e = kernels.expectation(*step_inputs(x), 0.15, estimate=nearest)
    assert e.y_M.tolist() == [0] * 9
    assert e.prior_sum.tolist() == [9.0] + [0.0] * 69


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_bad_rows_are_counted_and_labels_stay_in_range(value: float) -> None:
    x = batch(10, 40, 20)
    x.features[3, 19] = value
    x.features[7, 0] = value
    e = kernels.expectation(*step_inputs(x), 0.15)
    assert float(e.bad_rows) == 2
    assert float(e.rows) == 10
    assert 0 <= int(e.y_M.min()) <= int(e.y_M.max()) < 40


def test_a_large_finite_norm_is_not_bad() -> None:
    x = batch(4, 6, 3, norm=1e20)
    assert float(kernels.expectation(*step_inputs(x), 0.15).bad_rows) == 0


@pytest.mark.parametrize("layout", ["strided", "transposed", "sliced"])
def test_any_layout(layout: str) -> None:
    x = batch(11, 19, 24)
    plain = kernels.expectation(*step_inputs(x), 0.15, labels=x.labels)

    def lay(t: torch.Tensor) -> torch.Tensor:
        if layout == "strided":
            return torch.stack([t, -t], -1).flatten(1)[:, ::2]
        return t.T.contiguous().T if layout == "transposed" else torch.cat([t + 1, t], 1)[:, t.shape[1] :]

    features, mu, mu_g, mu_f = (lay(t) for t in (x.features, x.mu, x.mu_g, x.mu_f))
    assert not features.is_contiguous()
    labels = torch.stack([x.labels, x.labels + 1], 1)[:, 0]
    log_pi = torch.stack([x.pi.log(), x.pi], 1)[:, 0]
    e = kernels.expectation(features, mu, mu_g, mu_f, log_pi, 0.15, labels=labels)
    for name in ("S_g", "S_f", "y_M", "statistics"):
        assert torch.equal(getattr(e, name), getattr(plain, name)), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype: torch.dtype) -> None:
    half_rule(
        lambda ops, x: [torch.softmax(ops.expectation(*step_inputs(x), 0.15).S_g.float(), 1)], batch(13, 21, 40), dtype
    )
    x = batch(13, 21, 40)
    mixed = replace(x, features=x.features.to(dtype), mu_g=x.mu_g.to(dtype))
    e = kernels.expectation(*step_inputs(mixed), 0.15, labels=x.labels)
    r = reference.expectation(*step_inputs(mixed.to(torch.float64)), 0.15, labels=x.labels)
    assert e.S_g.dtype == e.S_f.dtype == e.statistics.dtype == torch.float32
    assert error(torch.softmax(e.S_g, 1), torch.softmax(r.S_g, 1)) < P_TOLERANCE, "half beside half is exact"
    assert error(e.colsum_g, r.colsum_g) < 2e-5
    assert error(e.sums, r.sums) < 2e-5
    f, u = (torch.nn.functional.normalize(t.double()).to(dtype) for t in (mixed.features, mixed.mu_f))
    autocast = torch.softmax(x.pi.double().log() + (f @ u.T) / 0.15, 1)
    P_f = torch.softmax(r.S_f, 1)
    assert 0 < error(torch.softmax(e.S_f, 1), P_f) <= error(autocast, P_f), (
        "float32 beside a half type is rounded, to TF32 or bfloat16, and errs less than torch does under autocast"
    )


@settings(max_examples=8, deadline=None, derandomize=True)  # it looks at rounding: the same cases each time
@given(
    B=st.integers(1, 40), C=st.integers(2, 70), D=st.integers(1, 80), tau=st.floats(0.01, 1.0),
    seed=st.integers(0, 9), norm=st.sampled_from([1e-6, 1e-2, 1.0, 1e4]),
)  # fmt: skip
def test_drawn_shapes(B: int, C: int, D: int, tau: float, seed: int, norm: float) -> None:
    x = batch(B, C, D, seed=seed, norm=norm)
    with nan_filled():
        e = kernels.expectation(*step_inputs(x), tau, labels=x.labels)
    r = reference.expectation(*step_inputs(x.to(torch.float64)), tau, labels=x.labels)
    check_posteriors(x, tau, e)
    of_torch = reference.expectation(*step_inputs(x), tau).statistics
    slack = 1e-5 + error(of_torch[: 3 * C + 2], r.statistics[: 3 * C + 2])
    assert error(e.statistics[: 3 * C + 2], r.statistics[: 3 * C + 2]) < slack
    assert error(e.sums, r.sums) < 1e-5 * norm


def test_addresses_and_order() -> None:
    x = batch(37, 67, 33)
    for estimate, labels in ((reference.likelihood, None), (nearest, x.labels)):
        with check_addresses():
            kernels.expectation(*step_inputs(x), 0.15, estimate=estimate, labels=labels)
    small = batch(18, 35, 9)

    def run() -> tuple[torch.Tensor, ...]:
        e = kernels.expectation(*step_inputs(small), 0.15)
        return e.S_g, e.S_f, e.y_M, e.statistics, *e.scales

    assert_order_free(run, seeds=(1,))


@pytest.mark.parametrize("D", [64, *(D for D in (33, 256))])
def test_at_a_small_tau_it_is_no_worse_than_pytorch_on_the_whole(D: int) -> None:
    """There a rounding of a cosine is worth more than CCE's slack, and a draw alone is decided by luck: in 600 draws
    (tau 0.01 to 1) cosines that were exact, and logits that were rounded but once, broke the rule twice. So the rule is
    held over many draws; from a width of 64 on the kernels' errors are the smaller ones. (At a width of 3 they are a
    fifth larger on the whole.)"""
    draws = random.Random(D)
    found, torchs = [], []
    for seed in range(24):
        B, C, tau = draws.randint(1, 40), draws.randint(2, 70), draws.choice([0.01, 0.02, 0.05])
        x = batch(B, C, D, seed=seed)
        e = kernels.expectation(*step_inputs(x), tau)
        plain = reference.expectation(*step_inputs(x), tau)
        exact = reference.expectation(*step_inputs(x.to(torch.float64)), tau)
        for S, S_plain, S_exact in ((e.S_g, plain.S_g, exact.S_g), (e.S_f, plain.S_f, exact.S_f)):
            P, P_plain, P_exact = (torch.softmax(logits, 1) for logits in (S, S_plain, S_exact))
            found.append(error(P, P_exact))
            torchs.append(error(P_plain, P_exact))
    slack = P_SLACK if D < 64 else 0
    assert sum(found) / len(found) <= sum(torchs) / len(torchs) + slack
