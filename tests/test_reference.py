"""Every equation against an independent float64 computation in numpy, loops and all; gradients; the edges."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import gradcheck

from fastget import reference as R

Array = NDArray[np.float64]
B, C, D = 7, 5, 4


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def simplex(*shape: int, seed: int = 0) -> Tensor:
    return torch.softmax(random(*shape, seed=seed), -1)


def close(got: Tensor, expected: object) -> None:
    np.testing.assert_allclose(got.detach().numpy(), np.asarray(expected), rtol=0, atol=1e-10)


def numpy_logits(f: Array, m: Array, log_prior: Array, tau: float) -> Array:
    out = np.zeros((len(f), len(m)))
    for b in range(len(f)):
        for c in range(len(m)):
            norms = max(math.sqrt(f[b] @ f[b]), 1e-12) * max(math.sqrt(m[c] @ m[c]), 1e-12)
            out[b, c] = log_prior[c] + (f[b] @ m[c]) / norms / tau
    return out


def numpy_softmax(s: Array) -> Array:
    e = np.exp(s - s.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.05, 0.15, 1.0])
def test_posterior(tau: float) -> None:
    f, m, log_prior = random(B, D), random(C, D, seed=1), simplex(C).log()
    expected = numpy_softmax(numpy_logits(f.numpy(), m.numpy(), log_prior.numpy(), tau))
    close(R.posterior(f, m, log_prior, tau), expected)


def test_posterior_of_a_zero_feature_is_the_prior() -> None:
    f, m, pi = random(3, D), random(C, D), simplex(C)
    f[1] = 0
    m[2] = 0
    P = R.posterior(f, m, pi.log(), 0.1)
    close(P[1], pi)
    close(P, numpy_softmax(numpy_logits(f.numpy(), m.numpy(), pi.log().numpy(), 0.1)))


def test_posterior_below_the_least_norm_divides_by_it() -> None:
    f = torch.tensor([[5e-13, 0.0]], dtype=torch.float64)
    m = torch.eye(2, dtype=torch.float64)
    close(R.cosine(f, m), [[0.5, 0.0]])


def test_prior_with_zeros_gives_zero_posterior() -> None:
    pi = torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)
    P = R.posterior(random(4, D), random(3, D, seed=1), pi.log(), 0.2)
    assert (P[:, 1] == 0).all()
    close(P.sum(1), np.ones(4))


@pytest.mark.parametrize("floor", [1e-8, 1e-4])
def test_update_prior(floor: float) -> None:
    pi, P_bar = simplex(C), simplex(C, seed=1)
    mixed = 0.9 * pi.numpy() + 0.1 * P_bar.numpy()
    close(R.update_prior(pi, P_bar, 0.1, floor), mixed / mixed.sum())
    low = R.update_prior(torch.tensor([1.0, 0.0]).double(), torch.tensor([1.0, 0.0]).double(), 0.5, floor)
    close(low, [1.0, floor])
    assert torch.isfinite(low.log()).all()


def test_update_prior_renormalises() -> None:
    close(R.update_prior(torch.full((4,), 0.5).double(), torch.full((4,), 0.5).double(), 0.3), np.full(4, 0.25))


def test_shrink_prior() -> None:
    pi = simplex(C).numpy()
    beta = 1 - math.exp(-sum(p * math.log(p) for p in pi)) / C
    expected = pi**beta / (pi**beta).sum()
    close(R.shrink_prior(torch.from_numpy(pi)), expected)
    close(R.shrink_prior(torch.full((C,), 1 / C, dtype=torch.float64)), np.full(C, 1 / C))


@pytest.mark.parametrize("gate", [False, True])
def test_cap_prior(gate: bool) -> None:
    """By a loop of Python floats; classes at half the typical share or above, with the gate at two thirds of it, are
    worth the same."""
    share, reach, most = (0.85, 1.5, 1.0) if gate else (1.0, 2.0, math.inf)
    for pi in (simplex(C).tolist(), [0.5, 0.3, 0.2, 0.0], [0.97, 0.01, 0.01, 0.01], [0.4, 0.3, 0.2, 0.1]):
        square, entropy = sum(p * p for p in pi), -sum(p * math.log(p) for p in pi if p)
        beta = min(most, 4 / share * max(0, 1 - math.exp(entropy) / (share * len(pi))))
        u = [min(1, reach * p / square) ** beta for p in pi]
        floored = [max(x / sum(u), 1e-3 / len(pi)) for x in u]
        found = R.cap_prior(torch.tensor(pi, dtype=torch.float64), gate)
        close(found, np.array([x / sum(floored) for x in floored]))
    even = R.cap_prior(torch.tensor([0.45, 0.3, 0.25, 0.0], dtype=torch.float64))
    close(even[:3] / even[0], np.ones(3))
    assert 0 < even[3] < 0.1 * even[0]
    close(R.cap_prior(torch.full((C,), 1 / C, dtype=torch.float64), gate), np.full(C, 1 / C))


def test_the_gate_leaves_out_what_is_not_very_skewed() -> None:
    skewed = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)  # exp(H) is 0.90 of 4
    close(R.cap_prior(skewed, gate=True), np.full(4, 0.25))
    assert R.cap_prior(skewed)[3] < 0.24


def test_agreeing_votes() -> None:
    """An image votes where both nearest are one class; the lowest on a tie."""
    f, mu, means = random(60, D), random(C, D, seed=1), random(C, D, seed=2)
    units = [[m / np.linalg.norm(m) for m in prototypes.numpy()] for prototypes in (mu, means)]
    nearest = [[int(np.argmax([np.dot(x, m) for m in unit])) for x in f.numpy()] for unit in units]
    expected = np.zeros(C)
    for a, b in zip(*nearest, strict=True):
        expected[a] += a == b
    assert 0 < expected.sum() < 60
    close(R.agreeing_votes(f, mu, means), expected)
    same = torch.zeros(C, D, dtype=torch.float64)
    same[:, 0] = 1  # sums of zeros and one product: a tie to the bit
    close(R.agreeing_votes(f, same, same), np.eye(C)[0] * 60)


def test_shrink_prior_keeps_zeros_at_zero() -> None:
    shrunk = R.shrink_prior(torch.tensor([0.7, 0.3, 0.0], dtype=torch.float64))
    assert shrunk[2] == 0
    assert torch.isfinite(shrunk).all()


def test_nearest_histogram() -> None:
    f, m = random(B, D), random(C, D, seed=1)
    nearest = numpy_logits(f.numpy(), m.numpy(), np.zeros(C), 1.0).argmax(1)
    close(R.nearest_histogram(f, m), np.bincount(nearest, minlength=C) / B)


def test_ties_go_to_the_lowest_index() -> None:
    assert R.first_argmax(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])).tolist() == [1, 0]
    zeros = R.nearest_histogram(torch.zeros(3, D), torch.zeros(C, D))
    assert zeros.tolist() == [1.0, 0, 0, 0, 0]


def test_class_sums() -> None:
    f, y = random(B, D), torch.tensor([0, 2, 2, 4, 0, 2, 4])
    sums, counts = R.class_sums(f, y, C)
    expected = np.zeros((C, D))
    for row, c in zip(f.numpy(), y.tolist(), strict=True):
        expected[c] += row
    close(sums, expected)
    assert counts.tolist() == [2, 0, 3, 0, 2]


def test_update_prototypes_leaves_an_empty_class_to_the_bit() -> None:
    mu, sums = random(C, D), random(C, D, seed=1)
    counts = torch.tensor([2.0, 0, 1, 0, 4], dtype=torch.float64)
    new = R.update_prototypes(mu, sums, counts, 0.3)
    for c in range(C):
        if counts[c] == 0:
            assert torch.equal(new[c], mu[c])
        else:
            close(new[c], 0.7 * mu[c].numpy() + 0.3 * sums[c].numpy() / counts[c].item())


def test_structure_loss() -> None:
    Q, P = simplex(B, C), simplex(B, C, seed=1)
    q, p = Q.numpy(), P.numpy()
    kl = sum(q[b, c] * math.log(q[b, c] / p[b, c]) for b in range(B) for c in range(C)) / B
    bar = q.mean(0)
    close(R.structure_loss(Q, P), kl + sum(x * math.log(x) for x in bar))


def test_structure_loss_where_q_is_zero() -> None:
    Q = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    P = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = R.structure_loss(Q, P)
    loss.backward()
    assert loss.item() == 0
    assert P.grad is not None
    assert torch.isfinite(P.grad).all()


def test_rebalance() -> None:
    P = simplex(B, C)
    p = P.numpy()
    q = p / np.sqrt(p.sum(0))
    close(R.rebalance(P), q / q.sum(1, keepdims=True))
    colsum = torch.rand(C, dtype=torch.float64) + 0.5
    q = p / np.sqrt(colsum.numpy())
    close(R.rebalance(P, colsum), q / q.sum(1, keepdims=True))


def test_rebalance_with_a_column_of_no_mass() -> None:
    P = torch.tensor([[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    Q = R.rebalance(P)
    assert (Q[:, 1] == 0).all()
    close(Q.sum(1), [1, 1])
    (grad,) = torch.autograd.grad(Q.pow(2).sum(), P)
    assert torch.isfinite(grad).all()


def test_rebalance_exponent() -> None:
    for present, expected in ((20, 0.5), (17, 0.5), (15, 0.25), (13, 0.0), (2, 0.0)):  # of 20: exp(H) is their number
        pi = torch.zeros(20, dtype=torch.float64)
        pi[:present] = 1 / present
        close(R.rebalance_exponent(pi), expected)
    assert R.rebalance_exponent(simplex(C).float()).dtype == torch.float32


def test_mixed_labels() -> None:
    Q, y = simplex(3, C), torch.tensor([4, 0, 2])
    expected = 0.8 * Q.numpy()
    expected[np.arange(3), y.numpy()] += 0.2
    close(R.mixed_labels(Q, y, 0.2), expected)


def test_soft_cross_entropy() -> None:
    f, m, log_prior, y = random(B, D), random(C, D, seed=1), simplex(C).log(), simplex(B, C, seed=2)
    P = numpy_softmax(numpy_logits(f.numpy(), m.numpy(), log_prior.numpy(), 0.3))
    close(R.soft_cross_entropy(f, m, log_prior, 0.3, y), -(y.numpy() * np.log(P)).sum(1).mean())


@pytest.mark.parametrize(("b", "c"), [(1, 2), (1, 5), (6, 2)])
def test_smallest_shapes(b: int, c: int) -> None:
    f, m, pi = random(b, 1), random(c, 1, seed=1), simplex(c)
    P = R.posterior(f, m, pi.log(), 0.5)
    close(P, numpy_softmax(numpy_logits(f.numpy(), m.numpy(), pi.log().numpy(), 0.5)))
    close(R.rebalance(P).sum(1), np.ones(b))


# --- gradients -----------------------------------------------------------------------------------


def test_gradients() -> None:
    f, m, y = random(B, D).requires_grad_(), random(C, D, seed=1).requires_grad_(), simplex(B, C, seed=2)
    log_prior = simplex(C).log().requires_grad_()
    P, Q = simplex(B, C).requires_grad_(), simplex(B, C, seed=3).requires_grad_()
    assert gradcheck(lambda f, m, p: R.posterior(f, m, p, 0.5), (f, m, log_prior))
    assert gradcheck(lambda f, m, p: R.soft_cross_entropy(f, m, p, 0.5, y), (f, m, log_prior))
    assert gradcheck(lambda P: R.rebalance(P), (P,))
    assert gradcheck(R.structure_loss, (Q, P))
    assert gradcheck(lambda Q: R.mixed_labels(Q, torch.zeros(B, dtype=torch.int64), 0.2), (Q,))
    assert gradcheck(lambda f: R.class_sums(f, torch.arange(B) % C, C)[0], (f,))
    assert gradcheck(lambda P: R.shrink_prior(P[0]), (P,))
    assert gradcheck(lambda P: R.update_prior(P[0], P[1], 0.3), (P,))
    counts = torch.tensor([1.0, 0, 2, 3, 0]).double()
    assert gradcheck(lambda m, s: R.update_prototypes(m, s, counts, 0.2), (m, random(C, D, seed=4).requires_grad_()))


def test_a_zero_vector_gets_no_gradient() -> None:
    f = torch.zeros(2, D, dtype=torch.float64, requires_grad=True)
    R.soft_cross_entropy(f, random(C, D), simplex(C).log(), 0.1, simplex(2, C)).backward()
    assert f.grad is not None
    assert (f.grad == 0).all()


# --- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    f = (random(B, D) * 300).to(dtype)  # squares overflow float16
    m, pi = random(C, D).float(), simplex(C).float()
    P = R.posterior(f, m, pi.log(), 0.2)
    assert P.dtype == torch.float32
    exact = R.posterior(f.double(), m.double(), pi.double().log(), 0.2)
    torch.testing.assert_close(P.double(), exact, rtol=0, atol=1e-6)


# --- the phases ----------------------------------------------------------------------------------


@pytest.mark.parametrize("estimate", ["likelihood", "posterior", "nearest"])
@pytest.mark.parametrize("form", ["as it is", "prior_shrinkage", "prior_cap", "prior_gate"])
def test_expectation_is_the_equations(estimate: str, form: str) -> None:
    f, mu, mu_g, mu_f, pi = random(B, D), random(C, D, seed=1), random(C, D, seed=2), random(C, D, seed=3), simplex(C)
    labels = torch.arange(B) % C
    options: dict[str, bool] = {} if form == "as it is" else {form: True}
    options |= {"prior_cap": True} if form == "prior_gate" else {}
    e = R.expectation(f, mu, mu_g, mu_f, pi, 0.2, prior_estimate=estimate, labels=labels, **options)
    of_form = {"prior_shrinkage": R.shrink_prior, "prior_cap": R.cap_prior}
    of_form["prior_gate"] = partial(R.cap_prior, gate=True)
    log_prior = of_form.get(form, lambda pi: pi)(pi).log()
    P_g, P_f = (R.posterior(f, m, log_prior, 0.2) for m in (mu_g, mu_f))
    P_bar = {
        "likelihood": R.posterior(f, mu_g, torch.zeros(C).double(), 0.2).mean(0),
        "posterior": P_g.mean(0),
        "nearest": R.nearest_histogram(f, mu),
    }[estimate]
    close(e.colsum_g, P_g.sum(0))
    close(e.colsum_f, P_f.sum(0))
    close(e.prior_sum / e.rows, P_bar)
    assert torch.equal(e.y_M, R.posterior(f, mu, log_prior, 0.2).argmax(1))
    assert e.sums is not None
    assert e.counts is not None
    close(e.sums, R.class_sums(f, labels, C)[0])
    assert (e.rows.item(), e.bad_rows.item(), e.counts.sum().item()) == (B, 0, B)
    e.statistics.mul_(2)  # the views follow the packed buffer, as an all-reduce needs
    close(e.colsum_g, 2 * P_g.sum(0))
    assert e.rows.item() == 2 * B


def test_objective_is_the_equations() -> None:
    f, mu, mu_g, mu_f, pi = random(B, D), random(C, D, seed=1), random(C, D, seed=2), random(C, D, seed=3), simplex(C)
    e = R.expectation(f, mu, mu_g, mu_f, pi, 0.2)
    o = R.objective(e, 0.3, 0.6)
    for m, gamma, loss, structure in ((mu_g, 0.3, o.loss_g, o.structure_g), (mu_f, 0.6, o.loss_f, o.structure_f)):
        P = R.posterior(f, m, pi.log(), 0.2)
        Q = R.rebalance(P)
        close(loss, R.soft_cross_entropy(f, m, pi.log(), 0.2, R.mixed_labels(Q, e.y_M, gamma)))
        close(structure, R.structure_loss(Q, P))
    close(o.loss, o.loss_g + o.loss_f)


def test_objective_by_the_fading_exponent() -> None:
    f, mu, mu_g, mu_f = random(B, D), random(20, D, seed=1), random(20, D, seed=2), random(20, D, seed=3)
    pi = torch.full((20,), 1e-9, dtype=torch.float64)
    pi[:15] = 1 / 15
    o = R.objective(R.expectation(f, mu, mu_g, mu_f, pi, 0.2, rebalance_gate=True), 0.3, 0.6)
    P = R.posterior(f, mu_g, pi.log(), 0.2)
    Q = P.pow(1 + 3 * 0.5) / P.sum(0).pow(0.25)  # half-way: the power of P rises from 1 to 4
    Q = Q / Q.sum(1, keepdim=True)
    torch.testing.assert_close(o.structure_g, R.structure_loss(Q, P), rtol=1e-5, atol=1e-6)
    y_M = R.posterior(f, mu, pi.log(), 0.2).argmax(1)
    half_way = (0.3 + 0.3**2) / 2  # the weight of y_M falls from gamma to its square
    wanted = R.soft_cross_entropy(f, mu_g, pi.log(), 0.2, R.mixed_labels(Q, y_M, half_way))
    torch.testing.assert_close(o.loss_g, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_the_fading_exponent_leaves_labels_of_one_kind(gamma: float) -> None:
    """Without y_M, or with nothing else, there is nothing to give way to."""
    f, mu, mu_g, mu_f = random(B, D), random(20, D, seed=1), random(20, D, seed=2), random(20, D, seed=3)
    pi = torch.full((20,), 1e-9, dtype=torch.float64)
    pi[:2] = 0.5
    e = R.expectation(f, mu, mu_g, mu_f, pi, 0.2, rebalance_gate=True)
    P = R.posterior(f, mu_g, pi.log(), 0.2)
    Q = P.pow(4) / P.pow(4).sum(1, keepdim=True)
    wanted = R.soft_cross_entropy(f, mu_g, pi.log(), 0.2, R.mixed_labels(Q, e.y_M, gamma))
    torch.testing.assert_close(R.objective(e, gamma, gamma).loss_g, wanted, rtol=1e-6, atol=1e-6)


def test_objective_survives_a_posterior_that_underflows() -> None:
    f = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    far = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    e = R.expectation(f, far, far, far, torch.tensor([0.5, 0.5]), 0.001)
    assert e.colsum_g[1] == 0
    assert all(torch.isfinite(value) for value in R.objective(e, 0.5, 0.5))


def test_unknown_prior_estimate() -> None:
    with pytest.raises(ValueError, match="prior_estimate must be 'likelihood'"):
        R.expectation(random(B, D), random(C, D), random(C, D), random(C, D), simplex(C), 0.2, prior_estimate="mean")


def test_update_memory_needs_class_sums() -> None:
    e = R.expectation(random(B, D), random(C, D), random(C, D), random(C, D), simplex(C), 0.2)
    with pytest.raises(ValueError, match="needs class sums"):
        R.update_memory_(random(C, D), simplex(C), torch.tensor([0, -1]), e, 0.1, 0.1)


def test_a_class_without_prior_or_label_adds_nothing_to_the_loss() -> None:
    f = random(3, D).requires_grad_()
    pi = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    labels = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64).expand(3, 3)
    m = random(3, D, seed=1)
    loss = R.soft_cross_entropy(f, m, pi.log(), 0.2, labels)
    close(loss, R.soft_cross_entropy(f, m[:2], pi[:2].log(), 0.2, labels[:, :2]).detach())
    loss.backward()
    assert f.grad is not None
    assert torch.isfinite(f.grad).all()
