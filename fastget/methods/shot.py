"""SHOT's formulas (Liang, Hu and Feng, ICML 2020): a source-free target, by information and by labels of centroids.

Shapes: B images of a target batch, N of the whole target, C classes, D feature width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastget.common.ranks import global_mean, global_sum
from fastget.methods.minent import entropies, entropy
from fastget.reference import first_argmax, one_hot, wide

ROUNDS = 2  # of centroids: the first of the predictions, the second of the first's labels
FLOOR = 1e-8  # under a centroid's sum of weights


def shot_im(
    z: Tensor,  # (B, C) target logits
    balance: bool = True,
) -> Tensor:
    """Information maximisation: mean_b H(p_b) - H(p_bar), p = softmax(z), p_bar its mean over the global batch, in
    nats; without `balance`, mean_b H(p_b) alone. The gradient goes through all of it."""
    certain = global_mean(entropies(z))
    if not balance:
        return certain
    p = torch.softmax(z, 1)
    p_bar = global_sum(p.sum(0)) / global_sum(p.new_full((), len(p)))
    return certain - entropy(p_bar)


@torch.no_grad()
def shot_labels(
    f: Tensor,  # (N, D), this rank's share of the target
    p: Tensor,  # (N, C) its predictions
    threshold: float,  # tau, in images
) -> Tensor:
    """(N,) int64: the kept class whose centroid has the largest cosine with u_i = [f_i, 1] / |[f_i, 1]|.

    Round 1: c_k = sum_i p_ik u_i / (1e-8 + sum_i p_ik), and class k is kept where more than `threshold` images have it
    as argmax p_i. Round 2: the same of the labels of round 1. Where no class passes, those with any image do; equal
    cosines go to the lowest class. Sums and counts are over all ranks. A constant.
    """
    dtype = torch.promote_types(wide(f).dtype, wide(p).dtype)
    u = F.normalize(F.pad(f.to(dtype), (0, 1), value=1.0), dim=1)
    weights, labels = p.to(dtype), first_argmax(p)
    for _ in range(ROUNDS):
        labels = _nearest_kept(u, weights, labels, threshold)
        weights = one_hot(labels, p.shape[1], dtype)
    return labels


def _nearest_kept(u: Tensor, weights: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """A round: centroids of the weights (N, C), classes kept by the counts of `labels`."""
    counts = global_sum(one_hot(labels, weights.shape[1], torch.float64).sum(0))
    passed = counts > threshold
    kept = torch.where(passed.any(), passed, counts > 0)
    centroids = global_sum(weights.T @ u) / (FLOOR + global_sum(weights.sum(0)))[:, None]
    scores = u @ F.normalize(centroids, dim=1).T
    return first_argmax(scores.masked_fill(~kept, -torch.inf))
