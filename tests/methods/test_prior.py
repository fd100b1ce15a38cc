"""What fastget adds to the paper, (3'), (3*), (12), (13), (2') and (6'), against NumPy written from METHOD.md."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fastget.methods.get.prior import PriorRule, agreeing_votes, nearest, start_of
from fastget.reference import paper_prior
from tests.test_reference import close

C = 4


def of(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_nearest() -> None:
    cos = torch.tensor([[0.1, 0.9, 0.2], [0.5, 0.5, 0.1], [0.0, 0.0, 0.0]])
    close(nearest(cos, -cos, 0.1), [[0, 1, 0], [1, 0, 0], [1, 0, 0]])  # the lowest on a tie; no look at mu_g


def test_agreeing_votes() -> None:
    mu, means = torch.eye(3), torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 1.0, 2.0]])
    features = torch.tensor([[2.0, 0, 0], [0, 3.0, 0], [0, 1.0, 0.9], [0, 0, 5.0]])  # the third: 1 in mu, 2 in means
    close(agreeing_votes(features, mu, means), [[1, 2, 1], [1, 1, 2], [1, 1, 1]])


@pytest.mark.parametrize(
    ("both", "a", "b", "kappa", "trust"),
    [
        ((25, 25, 25, 25), (25, 25, 25, 25), (25, 25, 25, 25), 1.0, 1.0),
        ((10, 5, 5, 5), (25, 25, 25, 25), (25, 25, 25, 25), 0.0, 0.0),  # by chance, a quarter
        ((0, 0, 0, 0), (50, 50, 0, 0), (0, 0, 50, 50), 0.0, 0.0),  # nothing agrees
        ((100, 0, 0, 0), (100, 0, 0, 0), (100, 0, 0, 0), 0.0, 0.0),  # all in one class: no evidence
        ((20, 20, 15, 7.5), (25, 25, 25, 25), (25, 25, 25, 25), 0.5, 0.5),
    ],
)
def test_start(both: tuple[float, ...], a: tuple[float, ...], b: tuple[float, ...], kappa: float, trust: float) -> None:
    pi, found, agreement = start_of(torch.stack([of(*a), of(*b), of(*both)]))
    close(agreement, np.array([sum(both) / 100, kappa]))
    close(found, trust)
    share = np.maximum(np.array(both) / sum(both) if sum(both) else np.full(C, 1 / C), 1e-4)
    close(pi, share / share.sum())


def by_hand(pi: np.ndarray, trust: float, partial: bool) -> tuple[float, np.ndarray]:
    """l and pi~, as METHOD.md has them."""
    p = trust * pi + (1 - trust) / len(pi)
    spread = np.exp(-(p * np.log(p)).sum()) / len(pi)
    narrow = 1.0 if partial else min(1.0, max(0.0, (0.70 - spread) / 0.15))
    u = np.minimum(1, 1.5 * p / (p**2).sum()) ** narrow
    u = np.maximum(u, 1e-3 * u.mean())
    return narrow, u / u.sum()


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("trust", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("pi", "expected"),  # of l, in full trust and not declared
    [
        ((0.25, 0.25, 0.25, 0.25), 0.0),
        ((0.4, 0.3, 0.2, 0.1), 0.0),
        ((0.6, 0.3, 0.05, 0.05), 0.282),
        ((0.9, 0.0998, 1e-4, 1e-4), 1.0),
    ],
)
def test_rule(pi: tuple[float, ...], expected: float, trust: float, partial: bool) -> None:
    prior = PriorRule(partial=partial)(of(*pi), of(trust).squeeze())
    narrow, capped = by_hand(np.array(pi), trust, partial)
    if trust == 1 and not partial:
        assert narrow == pytest.approx(expected, abs=0.005)
    close(prior.log_pi, np.log(capped))
    close(prior.exponent, (1 - narrow) / 2)
    close(prior.power, 1 + 3 * narrow)
    close(prior.log_pi.exp().sum(), 1)


def test_without_trust_it_is_the_paper_s_equation_6_under_a_uniform_prior() -> None:
    given = PriorRule()(of(0.9, 0.0998, 1e-4, 1e-4), of(0.0).squeeze())
    paper = paper_prior(torch.full((C,), 1 / C, dtype=torch.float64))
    for ours, theirs in zip(given, paper, strict=True):
        close(ours, theirs)


def test_plain_is_the_paper_s() -> None:
    pi = of(0.6, 0.3, 0.05, 0.05)
    for partial in (False, True):
        given = PriorRule(trusted=False, partial=partial)(pi, of(0.3).squeeze())
        for ours, theirs in zip(given, paper_prior(pi), strict=True):
            assert torch.equal(ours, theirs)


def test_half_precision_is_computed_in_float32() -> None:
    assert PriorRule()(of(0.6, 0.3, 0.05, 0.05).half(), torch.ones(())).log_pi.dtype == torch.float32
