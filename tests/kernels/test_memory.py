"""The memory update against the reference in float64: prototypes, prior, health, and what refuses it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastget import kernels, reference
from fastget.methods.get.prior import PriorRule, nearest
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import (
    RULES,
    SHAPES,
    Batch,
    batch,
    empty_prior,
    error,
    nan_filled,
    relative,
    step_inputs,
    with_spread,
)


def updated(
    ops: Any, x: Batch, how: str, *, health: Tensor | None = None, gamma_mu: float = 0.3, gamma_pi: float = 0.1,
    estimate: Any = reference.likelihood, **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """mu, pi and health after one update, with the class sums made `how`: by "labels" or by "y_M"."""
    labels = x.labels if how == "labels" else None
    e = ops.expectation(*step_inputs(x), 0.2, estimate=estimate, labels=labels)
    mu, pi = x.mu.clone(), x.pi.clone()
    health = torch.tensor([4, -1]) if health is None else health.clone()
    with nan_filled():
        ops.update_memory_(mu, pi, health, e, gamma_mu, gamma_pi, **options)
    return mu, pi, health


@pytest.mark.parametrize("how", ["labels", "y_M"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_reference(shape: tuple[int, int, int], how: str) -> None:
    x = batch(*shape)
    mu, pi, health = updated(kernels, x, how)
    wanted_mu, wanted_pi, wanted_health = updated(reference, x.to(torch.float64), how)
    assert error(mu, wanted_mu) < 1e-6
    assert error(pi, wanted_pi) < 1e-7
    assert torch.equal(health, wanted_health)


@pytest.mark.parametrize("trust", [None, 0.0, 0.6, 1.0], ids=str)
@pytest.mark.parametrize("spread", [0.8, 0.62, 0.5, 0.1], ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("C", [2, 67, 345])
def test_what_the_next_step_takes_is_the_rules(C: int, rule: str, spread: float, trust: float | None) -> None:
    """Of the pi it leaves, in float64; `renew_prior_` has the same bits. A reference in float32 errs by more."""
    x = with_spread(batch(9, C, 5), spread)
    t = None if trust is None else torch.tensor(trust)
    prior, again = empty_prior(C), empty_prior(C)
    _, pi, _ = updated(kernels, x, "y_M", gamma_pi=0.003, floor=1e-4, prior=prior, rule=RULES[rule], trust=t)
    kernels.renew_prior_(again, pi, RULES[rule], t)
    exact = RULES[rule](pi.double(), torch.tensor(1.0 if trust is None else trust).double())
    for name, found, same, wanted in zip(prior._fields, prior, again, exact, strict=True):
        assert relative(found, wanted) < 1e-6 or error(found, wanted) < 1e-6, name
        assert torch.equal(found, same), name


@pytest.mark.parametrize("rule", RULES)
def test_a_prior_that_says_nothing_is_the_log_of_one_over_C(rule: str) -> None:
    for C in (2, 65, 345, 1000):
        prior, pi = empty_prior(C), torch.full((C,), 1 / C)
        kernels.renew_prior_(prior, pi, RULES[rule])
        wanted = RULES[rule](pi, torch.ones(()))
        assert relative(prior.log_pi, wanted.log_pi) < 1e-7
        assert torch.equal(prior.log_pi, prior.log_pi[:1].expand(C))
        assert (prior.exponent, prior.power) == wanted[1:]
        mistrusted = empty_prior(C)
        skewed = (torch.arange(C) + 1.0) / (C * (C + 1) / 2)
        kernels.renew_prior_(mistrusted, skewed, PriorRule(), torch.zeros(()))
        assert relative(mistrusted.log_pi, torch.full((C,), 1 / C).double().log()) < 1e-7


def test_a_step_of_nothing_leaves_the_prior_to_the_bit() -> None:
    x = batch(12, 30, 6)
    _, pi, _ = updated(kernels, x, "labels", gamma_pi=0.0, floor=1e-4)
    assert torch.equal(pi, x.pi)


@pytest.mark.parametrize("rule", RULES)
def test_a_nan_stays_to_be_seen(rule: str) -> None:
    prior, pi = empty_prior(6), torch.full((6,), 1 / 6)
    pi[2] = torch.nan
    kernels.renew_prior_(prior, pi, RULES[rule])
    wanted = RULES[rule](pi, torch.ones(()))
    for name, found, expected in zip(prior._fields, prior, wanted, strict=True):
        assert torch.equal(found.isnan(), expected.isnan()), name


def test_an_entry_of_zero() -> None:
    """0^l is 0, so that the floor of (2') takes it; but 1 where l is 0."""
    for spread in (0.9, 0.62, 0.3):
        x = with_spread(batch(5, 20, 6), spread)
        x.pi[-1] = 0
        prior = empty_prior(20)
        kernels.renew_prior_(prior, x.pi, PriorRule())
        assert relative(prior.log_pi, PriorRule()(x.pi.double(), torch.ones(()).double()).log_pi) < 1e-6


def test_a_class_without_a_sample_keeps_its_bits() -> None:
    x = batch(6, 40, 9)
    mu, _, _ = updated(kernels, x, "labels")
    absent = [c for c in range(40) if c not in x.labels.tolist()]
    assert torch.equal(mu[absent], x.mu[absent])
    assert not torch.equal(mu[x.labels], x.mu[x.labels])


def test_all_of_one_class_and_whole_steps() -> None:
    x = batch(9, 5, 7)
    x.labels.fill_(3)
    mu, _, _ = updated(kernels, x, "labels", gamma_mu=1.0)
    assert error(mu[3], x.features.double().mean(0)) < 1e-6
    assert torch.equal(mu[:3], x.mu[:3])


def test_a_floor_under_the_prior() -> None:
    x = batch(12, 30, 6)
    _, pi, _ = updated(kernels, x, "labels", estimate=nearest, floor=1e-4)
    _, wanted, _ = updated(reference, x.to(torch.float64), "labels", estimate=nearest, floor=1e-4)
    assert float(pi.min()) == pytest.approx(1e-4)
    assert error(pi, wanted) < 1e-7


@pytest.mark.parametrize("how", ["labels", "y_M"])
def test_a_bad_row_is_refused_and_noted_once(how: str) -> None:
    x = batch(8, 6, 5)
    x.features[1, 2] = float("inf")
    mu, pi, health = updated(kernels, x, how)
    assert torch.equal(mu, x.mu)
    assert torch.equal(pi, x.pi)
    assert health.tolist() == [5, 4]
    _, _, health = updated(kernels, x, how, health=torch.tensor([9, 4]))
    assert health.tolist() == [10, 4], "the first refused step stays"


@pytest.mark.parametrize("skip", [torch.tensor(1.0), torch.tensor(True), torch.tensor([2])], ids=str)
def test_skip_leaves_the_memory_alone(skip: Tensor) -> None:
    x = batch(8, 6, 5)
    mu, pi, health = updated(kernels, x, "labels", skip=skip)
    assert torch.equal(mu, x.mu)
    assert torch.equal(pi, x.pi)
    assert health.tolist() == [5, -1]
    moved, _, _ = updated(kernels, x, "labels", skip=torch.zeros_like(skip))
    assert not torch.equal(moved, x.mu)


def test_strided_memory_and_sums() -> None:
    x = batch(9, 7, 12)
    wanted, _, _ = updated(kernels, x, "labels")
    mu = x.mu.T.contiguous().T
    e = kernels.expectation(*step_inputs(x), 0.2, labels=x.labels)
    e = e._replace(sums=e.sums.T.contiguous().T)
    kernels.update_memory_(mu, x.pi.clone(), torch.tensor([0, -1]), e, 0.3, 0.1)
    assert torch.equal(mu, wanted)


def test_refusals() -> None:
    x = batch(4, 5, 6)
    health = torch.tensor([0, -1])
    e = kernels.expectation(*step_inputs(x), 0.2, labels=x.labels)
    with pytest.raises(ValueError, match=r"prior_sum of the expectation must have shape \(4,\), got \(5,\)"):
        kernels.update_memory_(x.mu[:4], x.pi[:4], health, e, 0.1, 0.1)
    with pytest.raises(ValueError, match="float32"):
        kernels.update_memory_(x.mu.half(), x.pi, health, e, 0.1, 0.1)
    with pytest.raises(ValueError, match=r"int64 of shape \(2,\)"):
        kernels.update_memory_(x.mu, x.pi, health.int(), e, 0.1, 0.1)
    pi = torch.stack([x.pi, x.pi], 1)[:, 0]
    with pytest.raises(ValueError, match="contiguous"):
        kernels.update_memory_(x.mu, pi, health, e, 0.1, 0.1)


def test_what_a_prior_may_be() -> None:
    x = batch(4, 5, 6)
    prior = empty_prior(5)
    with pytest.raises(ValueError, match=r"rule must be reference.paper_prior or .*PriorRule"):
        kernels.renew_prior_(prior, x.pi, lambda pi, trust: prior)
    with pytest.raises(ValueError, match=r"prior.log_pi must have shape \(5,\), got \(4,\)"):
        kernels.renew_prior_(empty_prior(4), x.pi)
    with pytest.raises(ValueError, match=r"prior.power is the memory, which is float32"):
        kernels.renew_prior_(prior._replace(power=prior.power.double()), x.pi)


def test_addresses_and_order() -> None:
    x = with_spread(batch(33, 35, 20), 0.62)
    trust, prior = torch.tensor(0.9), empty_prior(35)
    with check_addresses():
        e = kernels.expectation(*step_inputs(x), 0.2, labels=x.labels)
        given = (x.mu.clone(), x.pi.clone(), torch.tensor([0, -1]), e, 0.1, 0.1)
        kernels.update_memory_(*given, prior=prior, rule=PriorRule(), trust=trust)
        kernels.renew_prior_(prior, x.pi, PriorRule(), trust)
    assert_order_free(lambda: updated(kernels, x, "labels", prior=prior, rule=PriorRule()), seeds=(1,))
