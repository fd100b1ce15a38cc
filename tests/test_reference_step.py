"""The phases of a step are the equations of tests/test_reference.py, put together; and what the memory refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastget import reference as R
from fastget.methods.get.prior import nearest
from tests.test_reference import B, C, D, close, log_P, numpy_logits, numpy_softmax, random, simplex

# --- the phases ----------------------------------------------------------------------------------


def inputs(classes: int = C) -> tuple[Tensor, ...]:
    """features, mu, mu_g, mu_f, log_pi."""
    return (random(B, D), *(random(classes, D, seed=i) for i in (1, 2, 3)), simplex(classes).log())


@pytest.mark.parametrize("estimate", [R.likelihood, nearest])
@pytest.mark.parametrize("labels", [None, torch.arange(B) % C])
def test_expectation_is_the_equations(estimate: Any, labels: Tensor | None) -> None:
    f, mu, mu_g, mu_f, log_pi = inputs()
    e = R.expectation(f, mu, mu_g, mu_f, log_pi, 0.2, estimate=estimate, labels=labels)
    P_g, P_f = (R.posterior(f, m, log_pi, 0.2) for m in (mu_g, mu_f))
    if estimate is nearest:
        closest = numpy_logits(f.numpy(), mu.numpy(), np.zeros(C), 1.0).argmax(1)
        P_bar = np.bincount(closest, minlength=C) / B
    else:
        P_bar = numpy_softmax(numpy_logits(f.numpy(), mu_g.numpy(), np.zeros(C), 0.2)).mean(0)
    close(e.colsum_g, P_g.sum(0))
    close(e.colsum_f, P_f.sum(0))
    close(torch.softmax(e.S_g, 1), P_g)
    close(torch.softmax(e.S_f, 1), P_f)
    close(e.prior_sum / e.rows, P_bar)
    assert torch.equal(e.y_M, R.posterior(f, mu, log_pi, 0.2).argmax(1))
    sums, counts = R.class_sums(f, e.y_M if labels is None else labels, C)
    close(e.sums, sums)
    assert torch.equal(e.counts, counts)
    assert (e.rows.item(), e.bad_rows.item(), e.counts.sum().item()) == (B, 0, B)
    e.statistics.mul_(2)  # the views follow the packed buffer, as an all-reduce needs
    close(e.colsum_g, 2 * P_g.sum(0))
    assert e.rows.item() == 2 * B


def test_paper_prior() -> None:
    pi = simplex(C)
    for trust in (None, torch.zeros(())):  # which other rules ask for
        prior = R.paper_prior(pi, trust)
        close(prior.log_pi, np.log(pi.numpy()))
        assert (prior.exponent.item(), prior.power.item()) == (0.5, 1.0)
    assert R.paper_prior(pi.half()).log_pi.dtype == torch.float32


@pytest.mark.parametrize(("exponent", "power"), [(0.5, 1.0), (0.25, 2.5), (0.0, 4.0)])
def test_objective_is_the_equations(exponent: float, power: float) -> None:
    f, mu, mu_g, mu_f, log_pi = inputs()
    prior = R.Prior(log_pi, torch.tensor(exponent).double(), torch.tensor(power).double())
    e = R.expectation(f, mu, mu_g, mu_f, log_pi, 0.2)
    o = R.objective(e, prior, 0.3, 0.6)
    for m, gamma, loss, structure in ((mu_g, 0.3, o.loss_g, o.structure_g), (mu_f, 0.6, o.loss_f, o.structure_f)):
        P = R.posterior(f, m, log_pi, 0.2)
        Q = P.pow(power) / P.sum(0).pow(exponent)
        Q = Q / Q.sum(1, keepdim=True)
        close(loss, R.soft_cross_entropy(P.log(), R.mixed_labels(Q, e.y_M, gamma)))
        close(structure, R.structure_loss(Q, P))
    close(o.loss, o.loss_g + o.loss_f)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_labels_of_one_kind(gamma: float) -> None:
    """Q alone, or y_M alone."""
    f, mu, mu_g, mu_f, log_pi = inputs()
    e = R.expectation(f, mu, mu_g, mu_f, log_pi, 0.2)
    P = R.posterior(f, mu_g, log_pi, 0.2)
    labels = R.one_hot(e.y_M, C, P.dtype) if gamma else R.rebalance(P)
    close(R.objective(e, R.paper_prior(log_pi.exp()), gamma, gamma).loss_g, -(labels * P.log()).sum(1).mean())


def test_objective_has_the_gradient_of_its_loss() -> None:
    """With Q, y_M and the column sums held as they are."""
    f, mu, mu_g, mu_f, log_pi = inputs()
    prior = R.Prior(log_pi, torch.tensor(0.25).double(), torch.tensor(2.5).double())
    leaves = [x.requires_grad_() for x in (f, mu_g, mu_f)]
    e = R.expectation(f, mu, mu_g, mu_f, log_pi, 0.2)
    found = torch.autograd.grad(R.objective(e, prior, 0.3, 0.6).loss, leaves)
    total = f.new_zeros(())
    for m, gamma in ((mu_g, 0.3), (mu_f, 0.6)):
        P = R.posterior(f, m, log_pi, 0.2)
        Q = R.rebalance(P.detach(), None, prior.exponent, prior.power)
        total = total - (R.mixed_labels(Q, e.y_M, gamma) * P.log()).sum(1).mean()
    for d, expected in zip(found, torch.autograd.grad(total, leaves), strict=True):
        close(d, expected)


def test_objective_survives_a_posterior_that_underflows() -> None:
    f = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    far = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    prior = R.paper_prior(torch.tensor([0.5, 0.5]))
    e = R.expectation(f, far, far, far, prior.log_pi, 0.001)
    assert e.colsum_g[1] == 0
    assert all(torch.isfinite(value) for value in R.objective(e, prior, 0.5, 0.5))


def test_the_kernels_expectation_is_refused() -> None:
    f, mu, mu_g, mu_f, log_pi = inputs()
    e = R.expectation(f, mu, mu_g, mu_f, log_pi, 0.2)._replace(scales=())
    with pytest.raises(ValueError, match="use one backend for both"):
        R.objective(e, R.paper_prior(log_pi.exp()), 0.5, 0.5)


def test_a_class_without_prior_or_label_adds_nothing_to_the_loss() -> None:
    f = random(3, D).requires_grad_()
    pi = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    labels = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64).expand(3, 3)
    m = random(3, D, seed=1)
    loss = R.soft_cross_entropy(log_P(f, m, pi.log(), 0.2), labels)
    close(loss, R.soft_cross_entropy(log_P(f, m[:2], pi[:2].log(), 0.2), labels[:, :2]).detach())
    loss.backward()
    assert f.grad is not None
    assert torch.isfinite(f.grad).all()


# --- the memory ----------------------------------------------------------------------------------


def memory() -> tuple[Tensor, Tensor, Tensor, R.Prior]:
    """mu, pi, health and the prior of pi."""
    pi = simplex(C)
    return random(C, D, seed=1), pi, torch.tensor([4, -1]), R.paper_prior(pi)


@pytest.mark.parametrize("floor", [R.PRIOR_FLOOR, 0.1])
def test_update_memory_is_the_equations(floor: float) -> None:
    mu, pi, health, prior = memory()
    f, mu_g, y = random(B, D), random(C, D, seed=2), torch.tensor([0, 2, 2, 4, 0, 2, 4])
    e = R.expectation(f, mu, mu_g, mu_g, prior.log_pi, 0.2, labels=y)
    P_bar = R.posterior(f, mu_g, torch.zeros(C).double(), 0.2).mean(0)
    wanted_mu, wanted_pi = R.scatter_update(mu, pi, f, y, P_bar, 0.3, 0.1, floor)
    close(wanted_mu, R.update_prototypes(mu, *R.class_sums(f, y, C), 0.3))
    close(wanted_pi, R.update_prior(pi, P_bar, 0.1, floor))
    R.update_memory_(mu, pi, health, e, 0.3, 0.1, floor=floor, prior=prior)
    close(mu, wanted_mu)
    close(pi, wanted_pi)
    close(prior.log_pi, np.log(pi.numpy()))  # it follows
    assert health.tolist() == [5, -1]


def test_no_step_of_the_prior_leaves_it_to_the_bit() -> None:
    pi = torch.tensor([0.3, 0.3, 0.3])  # whose sum is no 1
    assert R.update_prior(pi, torch.eye(3)[0], 0.0) is pi


@pytest.mark.parametrize("why", ["features", "mu_g", "another rank", "skip"])
def test_what_leaves_the_memory_alone(why: str) -> None:
    mu, pi, health, prior = memory()
    before = [x.clone() for x in (mu, pi, *prior)]
    given = {"features": random(B, D), "mu_g": random(C, D, seed=2)}
    if why in given:
        given[why][1, 2] = torch.nan
    e = R.expectation(given["features"], mu, given["mu_g"], mu, prior.log_pi, 0.2)
    if why == "another rank":
        e.bad_rows.fill_(1)  # as an all-reduce of the statistics brings it
    skip = torch.tensor(1.0) if why == "skip" else None
    R.update_memory_(mu, pi, health, e, 0.3, 0.1, skip=skip, prior=prior)
    assert all(torch.equal(x, old) for x, old in zip((mu, pi, *prior), before, strict=True))
    assert health.tolist() == [5, -1 if why == "skip" else 4]
    R.update_memory_(mu, pi, health, e, 0.3, 0.1, skip=skip)
    assert health.tolist() == [6, -1 if why == "skip" else 4]  # the first one


def test_renew_prior_takes_the_rule_and_the_trust() -> None:
    mu, pi, health, prior = memory()

    def rule(pi: Tensor, trust: Tensor) -> R.Prior:
        return R.Prior(pi.log() * trust, trust / 4, trust * 2)

    for trust in (None, torch.tensor(0.5).double()):
        R.renew_prior_(prior, pi, rule, trust)
        close(prior.log_pi, pi.log() * (1 if trust is None else 0.5))
        assert (prior.exponent.item(), prior.power.item()) == ((0.25, 2) if trust is None else (0.125, 1))
    e = R.expectation(random(B, D), mu, mu, mu, prior.log_pi, 0.2)
    R.update_memory_(mu, pi, health, e, 0.3, 0.1, prior=prior, rule=rule, trust=torch.tensor(0.5).double())
    close(prior.log_pi, pi.log() / 2)
