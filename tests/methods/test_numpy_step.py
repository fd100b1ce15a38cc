"""GeT once more in plain NumPy, by a reader of fastget/METHOD.md, fastget/reference.py and methods/get/prior.py alone.

Nothing of the package is used in `Step`: its losses and its memory are those of `fastget.GeT` in float64 over 50 steps.

Shapes: N images in the target, B in a batch, C classes, D feature width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import fastget

Array = NDArray[Any]
N, B, C, D = 240, 36, 7, 12
WITHIN = 1e-9
STEPS = 50


# --- GeT in NumPy --------------------------------------------------------------------------------


def unit(x: Array) -> Array:
    return np.asarray(x / np.maximum(np.sqrt((x * x).sum(1, keepdims=True)), 1e-12))


def softmax(s: Array) -> Array:
    e = np.exp(s - s.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def hot(y: Array) -> Array:
    return np.asarray(np.eye(C)[y])


@dataclass
class Step:
    """The memory, and a step of it; the default's values."""

    tau: float = 0.15
    gamma_mu: float = 0.1
    gamma_pi: float = 0.003
    gamma_Q: float = 0.35
    agreement: bool = True  # (3')
    nearest: bool = True  # (3*)
    trusted: bool = True  # (12), (13), (2'), (6')
    head: bool = True  # (4*)
    partial: bool = False
    mu: Array = field(default_factory=lambda: np.zeros((C, D)))
    pi: Array = field(default_factory=lambda: np.full(C, 1 / C))
    trust: float = 1.0

    def start(self, f: Array, predictions: Array, W: Array, source_means: Array) -> None:
        """mu by the network's predictions, pi by (3'), trust by (12)."""
        length = np.sqrt((f * f).sum(1)).mean()
        for c in range(C):
            mine = f[predictions == c]
            self.mu[c] = mine.mean(0) if len(mine) else unit(W)[c] * length
        if not (self.agreement or self.trusted):
            return
        a, b = ((unit(f) @ unit(m).T).argmax(1) for m in (self.mu, source_means))
        votes = np.bincount(a[a == b], minlength=C)
        if self.agreement:
            share = np.maximum(votes / votes.sum() if votes.sum() else np.full(C, 1 / C), 1e-4)
            self.pi = share / share.sum()
        r, by_chance = (a == b).mean(), sum((a == c).mean() * (b == c).mean() for c in range(C))
        kappa = (r - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0
        self.trust = min(1.0, max(0.0, (kappa - 0.4) / 0.2))

    def narrow(self) -> tuple[Array, float]:
        """p of (12) and l of (13)."""
        p = self.trust * self.pi + (1 - self.trust) / C
        spread = np.exp(-(p * np.log(p)).sum()) / C
        return p, 1.0 if self.partial else min(1.0, max(0.0, (0.70 - spread) / 0.15))

    def prior(self) -> tuple[Array, float, float]:
        """log pi~, the power of the column sums and that of P."""
        if not self.trusted:
            return np.log(self.pi), 0.5, 1.0
        p, narrow = self.narrow()
        u = np.minimum(1, 1.5 * p / (p * p).sum()) ** narrow
        u = np.maximum(u, 1e-3 * u.mean())
        return np.log(u / u.sum()), (1 - narrow) / 2, 1 + 3 * narrow

    def labels(self, f: Array, W: Array, mu_f: Array) -> tuple[Array, list[Array]]:
        """E and C: y_M, and the soft labels y_g and y_f of (10)."""
        log_pi, exponent, power = self.prior()
        y_M = (log_pi + unit(f) @ unit(self.mu).T / self.tau).argmax(1)
        found = []
        for P in self.posteriors(f, W, mu_f):
            Q = P**power / P.sum(0) ** exponent
            Q = Q / Q.sum(1, keepdims=True)
            found.append((1 - self.gamma_Q) * Q + self.gamma_Q * hot(y_M))
        return y_M, found

    def posteriors(self, f: Array, W: Array, mu_f: Array) -> list[Array]:
        log_pi = self.prior()[0]
        return [softmax(log_pi + unit(f) @ unit(m).T / self.tau) for m in (W, mu_f)]

    def losses(self, f: Array, W: Array, mu_f: Array, labels: list[Array]) -> list[float]:
        """(7)-(9) of both heads, the labels held."""
        both = zip(labels, self.posteriors(f, W, mu_f), strict=True)
        return [float(-(y * np.log(P)).sum(1).mean()) for y, P in both]

    def remember(self, f: Array, W: Array, y_M: Array, predictions: Array) -> None:
        """(3) and (4)."""
        if self.nearest:
            P_bar, floor = hot((unit(f) @ unit(self.mu).T).argmax(1)).mean(0), 1e-4
        else:
            P_bar, floor = softmax(unit(f) @ unit(W).T / self.tau).mean(0), 1e-8
        pi = (1 - self.gamma_pi) * self.pi + self.gamma_pi * P_bar
        self.pi = np.maximum(pi / pi.sum(), floor)
        y = predictions if self.head else y_M
        for c in set(y.tolist()):
            self.mu[c] = (1 - self.gamma_mu) * self.mu[c] + self.gamma_mu * f[y == c].mean(0)


# --- beside fastget.GeT --------------------------------------------------------------------------


def random(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


@dataclass
class Problem:
    """A target that has moved away from its source, and may lack classes."""

    present: int
    noise: float
    apart: float = 0.0  # of the two labellers

    def __post_init__(self) -> None:
        centres = random(C, D, seed=1)
        y = np.random.default_rng(2).integers(0, self.present, N)
        self.f = centres[y] + 0.5 * random(1, D, seed=3) + self.noise * random(N, D, seed=4)
        self.W = centres + 0.3 * random(C, D, seed=5)
        self.source_means = centres + self.apart * random(C, D, seed=6)


PAPER: dict[str, Any] = {
    "tau": 1.0, "gamma_mu": 0.9, "gamma_pi": 0.01, "gamma_Q": 0.2,
    "agreement": False, "nearest": False, "trusted": False, "head": False,
}  # fmt: skip
CASES = {  # what GeT is built with, the NumPy step, and the problem
    "default, l = 0": ({}, {}, Problem(C, 0.8)),
    "default, t and l between": ({}, {}, Problem(3, 0.7, 0.6)),
    "default, l = 1": ({}, {}, Problem(3, 0.5)),
    "partial": ({"partial": True}, {"partial": True}, Problem(4, 0.8, 1.0)),
    "paper": (fastget.RECIPES["paper"], PAPER, Problem(5, 0.8)),
}


def torchs(x: Array) -> Tensor:
    return torch.from_numpy(np.array(x))


@pytest.mark.parametrize("name", CASES)
def test_fifty_steps(name: str) -> None:
    options, values, problem = CASES[name]
    get, step = fastget.GeT(C, D, backend="reference", **options).double(), Step(**values)
    f, W = problem.f, problem.W.copy()
    network = (f @ W.T).argmax(1)
    get.initialise(torchs(f), torchs(network), torchs(W), torchs(problem.source_means))
    step.start(f, network, W, problem.source_means)
    assert_equal_memory(get, step)
    narrow = [step.narrow()[1]]
    moved = step.mu.copy()
    for k in range(STEPS):
        if k % 10 == 0:
            get.start_epoch()
        rows = np.random.default_rng(100 + k).permutation(N)[:B]
        batch, weight = torchs(f[rows]).requires_grad_(), torchs(W).requires_grad_()
        predictions = (f[rows] @ W.T).argmax(1)
        out = get(batch, weight, labels=torchs(predictions))
        slopes = torch.autograd.grad(out.loss, (batch, weight, get.mu_f))

        mu_f = get.mu_f.detach().numpy().copy()
        y_M, labels = step.labels(f[rows], W, mu_f)
        assert out.y_M.tolist() == y_M.tolist()
        losses = step.losses(f[rows], W, mu_f, labels)
        assert [out.loss_g.item(), out.loss_f.item()] == pytest.approx(losses, abs=WITHIN)
        assert out.loss.item() == pytest.approx(sum(losses), abs=WITHIN)
        if k % 10 == 0:
            assert_slopes(step, (f[rows], W, mu_f), labels, slopes)

        with torch.no_grad():  # M: an optimizer's step
            W = W - 0.1 * slopes[1].numpy()
            get.mu_f.sub_(0.1 * slopes[2])
        get.update(batch.detach(), out)
        step.remember(f[rows], weight.detach().numpy(), y_M, predictions)
        assert_equal_memory(get, step)
        narrow.append(step.narrow()[1])
    assert np.abs(step.mu - moved).max() > 0.1
    assert_it_is(name, step, narrow)


def assert_equal_memory(get: fastget.GeT, step: Step) -> None:
    log_pi, exponent, power = step.prior()
    pairs: list[tuple[Tensor, Any]] = [(get.mu, step.mu), (get.pi, step.pi), (get.trust, step.trust)]
    pairs += [(get.prior.log_pi, log_pi), (get.prior.exponent, exponent), (get.prior.power, power)]
    for found, expected in pairs:
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=WITHIN)


def assert_slopes(step: Step, given: tuple[Array, ...], labels: list[Array], slopes: tuple[Tensor, ...]) -> None:
    """One entry of each by differences, with y_g and y_f held."""
    for i, slope in enumerate(slopes):
        ends = []
        for by in (1e-5, -1e-5):
            f, W, mu_f = (x.copy() for x in given)
            (f, W, mu_f)[i][2, 3] += by
            ends.append(sum(step.losses(f, W, mu_f, labels)))
        assert slope[2, 3].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-9)


def assert_it_is(name: str, step: Step, narrow: list[float]) -> None:
    """What the case's name says."""
    if name == "default, l = 0":
        assert (step.trust, max(narrow)) == (1, 0)
    elif name == "default, l = 1":
        assert (step.trust, min(narrow)) == (1, 1)
    elif name == "default, t and l between":
        assert 0 < step.trust < 1
        assert 0 < min(narrow) < max(narrow) < 1
    elif name == "partial":
        assert 0 < step.trust < 1
        assert step.prior()[1:] == (0, 4)
    else:
        assert step.prior()[1:] == (0.5, 1)
