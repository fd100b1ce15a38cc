"""Every equation against an independent float64 computation in numpy, loops and all; gradients; the edges."""

import math

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


def log_P(f: Tensor, m: Tensor, log_prior: Tensor, tau: float) -> Tensor:
    return torch.log_softmax(R.logits(R.cosine(f, m), log_prior, tau), 1)


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


def test_ties_go_to_the_lowest_index() -> None:
    assert R.first_argmax(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])).tolist() == [1, 0]


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


@pytest.mark.parametrize(("exponent", "power"), [(0.5, 1.0), (0.25, 2.5), (0.0, 4.0)])
def test_rebalance_by_other_powers(exponent: float, power: float) -> None:
    """(6'), in loops; the same from logits that are not normalised."""
    P, colsum = simplex(B, C), torch.rand(C, dtype=torch.float64) + 0.5
    expected = np.zeros((B, C))
    for b in range(B):
        weights = [P[b, c].item() ** power / colsum[c].item() ** exponent for c in range(C)]
        expected[b] = np.array(weights) / sum(weights)
    close(R.rebalance(P, colsum, exponent, power), expected)
    close(R.rebalance_logits(P.log() + 3, colsum, torch.tensor(exponent).double(), torch.tensor(power)), expected)


def test_mixed_labels() -> None:
    Q, y = simplex(3, C), torch.tensor([4, 0, 2])
    expected = 0.8 * Q.numpy()
    expected[np.arange(3), y.numpy()] += 0.2
    close(R.mixed_labels(Q, y, 0.2), expected)


def test_soft_cross_entropy() -> None:
    P, y = simplex(B, C), simplex(B, C, seed=2)
    close(R.soft_cross_entropy(P.log(), y), -(y.numpy() * np.log(P.numpy())).sum(1).mean())


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
    assert gradcheck(lambda f, m, p: R.soft_cross_entropy(log_P(f, m, p, 0.5), y), (f, m, log_prior))
    assert gradcheck(lambda P: R.rebalance(P), (P,))
    assert gradcheck(lambda P: R.rebalance(P, None, 0.25, 2.5), (P,))
    assert gradcheck(R.structure_loss, (Q, P))
    assert gradcheck(lambda Q: R.mixed_labels(Q, torch.zeros(B, dtype=torch.int64), 0.2), (Q,))
    assert gradcheck(lambda f: R.class_sums(f, torch.arange(B) % C, C)[0], (f,))
    assert gradcheck(lambda P: R.update_prior(P[0], P[1], 0.3), (P,))
    counts = torch.tensor([1.0, 0, 2, 3, 0]).double()
    assert gradcheck(lambda m, s: R.update_prototypes(m, s, counts, 0.2), (m, random(C, D, seed=4).requires_grad_()))


def test_a_zero_vector_gets_no_gradient() -> None:
    f = torch.zeros(2, D, dtype=torch.float64, requires_grad=True)
    R.soft_cross_entropy(log_P(f, random(C, D), simplex(C).log(), 0.1), simplex(2, C)).backward()
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
