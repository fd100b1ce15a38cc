"""SHOT's formulas (Liang, Hu and Feng, ICML 2020): a source-free target, by information and by labels of centroids.

Shapes: B images of a target batch, N of the whole target, C classes, D feature width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fastget.common.ranks import global_mean, global_sum
from fastget.methods import settings
from fastget.methods.base import Extra, Frozen, Method, Need, Seen, Steps, Task, Term, Whole
from fastget.methods.minent import entropies, entropy
from fastget.methods.pl import weighted_cross_entropy
from fastget.reference import first_argmax, one_hot, wide

ROUNDS = 2  # of centroids: the first of the predictions, the second of the first's labels
FLOOR = 1e-8  # under a centroid's sum of weights
NO_LABEL = -1


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


class SHOT(Method):
    """The target phase. Labels of all images are made anew in each interval; one that could not be read then has none,
    and no part in the cross-entropy."""

    Config = settings.SHOTSettings
    config: settings.SHOTSettings
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "warm-up", "source-free"})
    warm_share: ClassVar[float] = 0.5
    frozen: ClassVar[frozenset[Frozen]] = frozenset({"classifier"})
    assigned: Tensor  # (N,) int64 labels of all images, on every rank
    interval: Tensor  # () int64, how often they were made

    def __init__(self, config: settings.SHOTSettings, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("assigned", torch.full((task.target_images,), NO_LABEL))
        self.register_buffer("interval", torch.zeros((), dtype=torch.int64))

    @property
    def extra(self) -> frozenset[Extra]:
        return frozenset({"each epoch"} if self.config.labels else ())

    @property
    def balance(self) -> bool:
        """Whether the mean prediction's entropy is raised: not on a target that is known to lack classes."""
        return not self.partial if self.config.balance == "auto" else self.config.balance == "on"

    @property
    def threshold(self) -> float:
        """tau, in images."""
        if self.config.threshold is not None:
            return self.config.threshold
        return self.config.threshold_share * self.task.target_images / self.task.num_classes if self.partial else 0.0

    def period(self, plan: Steps) -> int:
        return max(1, (plan.max_steps - plan.warmup_steps) // self.config.intervals)

    @torch.no_grad()
    def start_epoch(self, whole: Whole) -> None:
        """The labels of an interval, made in float64 and told to every rank."""
        if not self.config.labels:
            return
        width = whole.classifier.in_features
        f = torch.cat([whole.logits.new_empty(0, width), *whole.features])
        labels = shot_labels(f.double(), whole.logits.double().softmax(1), self.threshold)
        told = torch.zeros_like(self.assigned)
        told[whole.index] = labels - NO_LABEL
        self.assigned.copy_(global_sum(told) + NO_LABEL)
        self.interval += 1

    def forward(self, seen: Seen) -> Term:
        information = shot_im(seen.logits, self.balance)
        if not self.config.labels:
            return Term(information)
        known = seen.logits.new_ones(len(seen.index))
        on_labels = weighted_cross_entropy(seen.logits, self.assigned[seen.index], known)
        weighted = self.config.labels * on_labels * (self.interval > self.config.late)
        parts = {"loss_information": information, "loss_labels": on_labels}
        return Term(information + weighted, parts)

    def pseudo_labels(self, seen: Seen) -> dict[str, tuple[Tensor, Tensor]]:
        labels = self.assigned[seen.index]
        p = seen.logits.softmax(1)
        return {"centroids": (labels, p.gather(1, labels.clamp_min(0)[:, None])[:, 0])} if self.config.labels else {}

    def figures(self) -> dict[str, Tensor]:
        if not self.config.labels:
            return {}
        counts = torch.bincount(self.assigned[self.assigned >= 0], minlength=self.task.num_classes)
        return {"labels/classes": counts / counts.sum().clamp_min(1)}
