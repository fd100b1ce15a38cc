"""The formulas of the systems that the paper compares with, in NumPy: what test_systems_formulas compares with.

What a formula holds constant is computed at `at`, which is not moved when slopes are taken; at=x for a value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.methods.plain import random

Array = NDArray[Any]
STEP = 2.0**-8  # of central differences of eighth order, as tests.methods.plain's
WEIGHTS = (4 / 5, -1 / 5, 4 / 105, -1 / 280)


_z, _other = random(6, 4), random(6, 4, seed=1)
_f, _y, _kept = random(6, 5, seed=2), torch.tensor([0, 1, 2, 3, 0, 2]), torch.tensor([0, 1, 1, 0, 1, 1])
_maps, _share = random(6, 3, 2, 4, seed=3), torch.linspace(0, 1, 6).double()
CALLS: dict[str, tuple[Any, ...]] = {  # of each formula, for what holds for all
    "aad": (_z, torch.softmax(random(6, 3, 4, seed=4), 2), 0.7),
    "alpha_power": (_z, 6.0),
    "ape_consistency": (_other, _z),
    "ape_explore": (_z, 0.5),
    "ape_mmd": (_f, random(4, 5, seed=5)),
    "ape_perturbation": (_maps, 25.0),
    "arpm_weights": (_f[:, 0], 0.5),
    "daln": (_other, _z),
    "dann": (_f[:, 0], 4),
    "fixbi_consistency": (_z, _other),
    "fixbi_matching": (_z, _other),
    "fixbi_mixup": (_z, _y, _other.argmax(1), 0.7),
    "fixbi_self_penalty": (_z, 5.0),
    "fixbi_threshold": (_z,),
    "hafn": (_f, 25.0),
    "rtnet_actor": (_z[:, :2], _kept, _f[:, 0]),
    "rtnet_errors": (_f, random(6, 5, seed=6)),
    "rtnet_rewards": (_f[:, 0].abs(), torch.tensor(0.8).double(), 0.3, _kept),
    "s3d_kd": (_other, _z, 4.0),
    "s3d_labels": (_z, 1.0, 0.95),
    "s3d_self": (_z,),
    "s3d_statistics": (_maps,),
    "s3d_style": (_maps, _f[:, :3], _f[:, 2:].abs(), _share),
    "s3d_weight": (torch.tensor(0.3).double(), 8.0),
    "safn": (_f, 1.0),
    "scda_mi": (_z,),
    "scda_pairs": (_other, _y, _z, 10.0, 0.4),
    "shot_im": (_z, True),
    "shot_labels": (_f, torch.softmax(random(6, 4), 1), 1),
    "warm_reversal": (torch.tensor(0.3).double(), 20.0),
}


def slopes(function: Callable[[Array], float], x: Array) -> Array:
    """The function's gradient, entry by entry."""
    found = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        for n, w in enumerate(WEIGHTS, 1):
            step = np.zeros_like(x)
            step[place] = n * STEP
            found[place] += w * (function(x + step) - function(x - step)) / STEP
    return found


def log_softmax(z: Array) -> Array:
    z = z - z.max(1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(1, keepdims=True)))


def softmax(z: Array) -> Array:
    return np.asarray(np.exp(log_softmax(z)))


def entropy(p: Array) -> Array:
    """Over the last axis."""
    return np.asarray(-(p * np.log(np.where(p > 0, p, 1))).sum(-1))


def kl(p: Array, q: Array) -> float:
    """Of two rows."""
    some = p > 0
    return float((p[some] * np.log(p[some] / q[some])).sum())


def cross_entropy(z: Array, y: Array) -> Array:
    return np.asarray(-log_softmax(z)[np.arange(len(z)), y])


def mean(values: Any) -> float:
    """0 over nothing."""
    values = list(values)
    return math.fsum(values) / len(values) if values else 0.0


def dann(d: Array, sources: int) -> float:
    d = d.reshape(-1)
    return (mean(np.logaddexp(0, -d[:sources])) + mean(np.logaddexp(0, d[sources:]))) / 2


def safn(f: Array, step: float, at: Array) -> float:
    return mean((np.linalg.norm(f, axis=1) - np.linalg.norm(at, axis=1) - step) ** 2)


def hafn(f: Array, radius: float) -> float:
    return float((mean(np.linalg.norm(f, axis=1)) - radius) ** 2)


def nuclear(z: Array) -> float:
    return float(np.linalg.svd(softmax(z), compute_uv=False).sum())


def daln(z_s: Array, z: Array) -> float:
    return nuclear(z_s) / len(z_s) - nuclear(z) / len(z)


def curve(x: float, rate: float) -> float:
    return 2 / (1 + math.exp(-rate * x)) - 1


def scda_pairs(z_s: Array, y_s: Array, z: Array, T: float, threshold: float, at: Array) -> float:
    """By loops over the pairs; `at` are the target's logits."""

    def js(p: Array, q: Array) -> float:
        m = (p + q) / 2
        return (kl(p, m) + kl(q, m)) / 2

    a, b, sure, labels = softmax(z_s / T), softmax(z / T), softmax(at).max(1), at.argmax(1)
    across = [(i, j) for i in range(len(a)) for j in range(len(b)) if y_s[i] == labels[j] and sure[j] >= threshold]
    within = [(i, k) for i, k in itertools.combinations(range(len(a)), 2) if y_s[i] == y_s[k]]
    return T * T * (mean(js(a[i], b[j]) for i, j in across) + mean(js(a[i], a[k]) for i, k in within))


def shot_im(z: Array, balance: bool = True) -> float:
    p = softmax(z)
    return mean(entropy(p)) - (float(entropy(p.mean(0))) if balance else 0.0)


def shot_labels(f: Array, p: Array, threshold: float) -> Array:
    """By loops, with cosine distances."""
    u = np.concatenate([f, np.ones((len(f), 1))], 1)
    u = u / np.linalg.norm(u, axis=1, keepdims=True)
    weights, labels = p, p.argmax(1)
    for _ in range(2):
        counts = [(labels == k).sum() for k in range(p.shape[1])]
        kept = [k for k, count in enumerate(counts) if count > threshold]
        kept = kept or [k for k, count in enumerate(counts) if count > 0]
        centroids = [sum(w * row for w, row in zip(weights[:, k], u, strict=True)) / (1e-8 + weights[:, k].sum())
                     for k in kept]  # fmt: skip
        apart = [[1 - row @ c / np.linalg.norm(c) for c in centroids] for row in u]
        labels = np.take(kept, np.argmin(apart, axis=1))
        weights = np.eye(p.shape[1])[labels]
    return np.asarray(labels)


def aad(z: Array, near: Array, alpha: float) -> float:
    p = softmax(z)
    rows = range(len(p))
    attracting = mean(sum(float(p[b] @ s) for s in near[b]) for b in rows)
    return alpha * mean(sum(float(p[b] @ p[m]) for m in rows if m != b) for b in rows) - attracting


def alpha_power(z: Array, alpha: float) -> float:
    return -mean((softmax(z) ** alpha).sum(1))


def arpm_weights(d: Array, rho: float) -> Array:
    """Bisection on kappa, and eta by sorting; as in the authors' problem, sum w d is least."""
    n, x = len(d), np.sort(d)

    def weights(kappa: float) -> Array:
        for m in range(n, 0, -1):
            eta = (n + kappa * x[:m].sum()) / m
            if eta - kappa * x[m - 1] >= 0:
                break
        return np.asarray(np.maximum(0, eta - kappa * d))

    low, high = 0.0, 1e8
    for _ in range(200):
        kappa = (low + high) / 2
        low, high = (kappa, high) if ((weights(kappa) - 1) ** 2).mean() <= rho else (low, kappa)
    return weights(low)


def rtnet_actor(z: Array, actions: Array, advantages: Array, bonus: float) -> float:
    return mean(cross_entropy(z, actions) * advantages) - bonus * mean(entropy(softmax(z)))


def fixbi_threshold(z: Array) -> float:
    q = softmax(z).max(1)
    return float(q.mean() - 2 * (q.std(ddof=1) if len(q) > 1 else 0))


def fixbi_mixup(z: Array, y_s: Array, y_t: Array, share: float) -> float:
    return share * mean(cross_entropy(z, y_s)) + (1 - share) * mean(cross_entropy(z, y_t))


def fixbi_self_penalty(z: Array, T: float, at: Array) -> float:
    p = softmax(z / T)
    rest = [sum(q for c, q in enumerate(row) if c != label) for row, label in zip(p, at.argmax(1), strict=True)]
    return mean(-math.log(max(left, 1e-7)) for left in rest)


def fixbi_matching(z: Array, peer: Array) -> float:
    q, each = softmax(peer).max(1), cross_entropy(z, peer.argmax(1))
    return mean(each[q >= fixbi_threshold(peer)])


def ape_mmd(x: Array, y: Array) -> float:
    def k(a: Array, b: Array) -> float:
        return mean(math.exp(-((p - q) @ (p - q)) / (2 * s * s)) for p in a for q in b for s in (1, 2, 5, 10)) * 4

    return k(x, x) + k(y, y) - 2 * k(x, y)


def ape_explore(z: Array, threshold: float, at: Array) -> float:
    return mean(cross_entropy(z, at.argmax(1))[entropy(softmax(at)) < threshold])


def ape_consistency(clean: Array, z: Array) -> float:
    log_p, log_q = log_softmax(clean), log_softmax(z)
    return mean((np.exp(log_p) * (log_p - log_q)).sum(1))


def s3d_self(z: Array, at: Array) -> float:
    return mean(softmax(at).max(1) * cross_entropy(z, at.argmax(1)))


def s3d_statistics(x: Array) -> tuple[Array, Array]:
    flat = x.reshape(*x.shape[:2], -1)
    variance = flat.var(2, ddof=1) if flat.shape[2] > 1 else 0 * flat[..., 0]
    return flat.mean(2), np.sqrt(variance + 1e-6)


def s3d_style(x: Array, mean_to: Array, std_to: Array, share: Array, at: Array) -> Array:
    (own_mean, own_std), share = s3d_statistics(at), share[:, None]
    std, mean_ = share * std_to + (1 - share) * own_std, share * mean_to + (1 - share) * own_mean
    own_mean, own_std, std, mean_ = (t[..., None, None] for t in (own_mean, own_std, std, mean_))
    return np.asarray(std * (x - own_mean) / own_std + mean_)


def s3d_labels(z: Array, margin: float, confidence: float) -> Array:
    top = np.sort(z, axis=1)
    lead = top[:, -1] - top[:, -2] if z.shape[1] > 1 else np.full(len(z), np.inf)
    found: Array = np.where((lead > margin) | (softmax(z).max(1) > confidence), z.argmax(1), -1)
    return found
