"""SCDA's formulas (Li et al., ICCV 2021): predictions of one class are pulled apart by the classifier, and pulled
together by the features.

Shapes: B source and B' target images, C classes.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fastget.common.ranks import gathered, global_rows
from fastget.methods import settings
from fastget.methods.base import Method, Need, Seen, Term
from fastget.methods.daln import reversed_logits
from fastget.methods.minent import entropy
from fastget.methods.shot import shot_im

AT_ONCE = 2**24  # numbers of the (rows, B', C) mixtures that are made together


def scda_pairs(
    z_s: Tensor,  # (B, C) source logits, of features behind a reversal
    y_s: Tensor,  # (B,) int64 source labels
    z: Tensor,  # (B', C) target logits, behind the reversal as well
    temperature: float = 10.0,
    threshold: float = 0.8,
) -> Tensor:
    """The prediction distribution discrepancy T^2 (mean of JS(a_i, b_j) over pairs of a source and a target row + mean
    of JS(a_i, a_k) over i < k), a = softmax(z_s / T), b = softmax(z / T); a pair is of one class.

    A target row's class is argmax z_j, where max softmax(z_j) >= threshold. A mean over no pair is 0. It is to be
    raised, so that the loss is its negative. The gradient goes to both logits; classes and thresholds are constants.
    The batch is the global one.
    """
    z_s, z, y_s = gathered(z_s), gathered(z), global_rows(y_s)
    confidence, labels = torch.softmax(z.detach(), 1).max(1)
    across = (y_s[:, None] == labels) & (confidence >= threshold)
    within = (y_s[:, None] == y_s).triu(1)
    a, b = torch.softmax(z_s / temperature, 1), torch.softmax(z / temperature, 1)
    return temperature**2 * (_mean_divergence(a, b, across) + _mean_divergence(a, a, within))


def scda_mi(z: Tensor) -> Tensor:
    """H(p_bar) - mean_b H(p_b), p = softmax(z), p_bar its mean over the global batch: in nats, at least 0. z is (B', C)
    target logits without a reversal. To be raised; the gradient goes through all of it."""
    return -shot_im(z)


def _mean_divergence(a: Tensor, b: Tensor, pairs: Tensor) -> Tensor:
    """The mean of JS(a_i, b_j) where `pairs` (B, B'). Of many rows, each part's mixtures are made again for the
    backward pass, so that one part's are in memory at a time."""
    size = max(1, AT_ONCE // max(1, b.numel()))
    if len(a) <= size:
        total = _divergences(a, b, pairs)
    else:
        parts = [slice(start, start + size) for start in range(0, len(a), size)]
        each = [checkpoint(_divergences, a[part], b, pairs[part], use_reentrant=False) for part in parts]
        total = torch.stack(each).sum()
    return total / pairs.sum().clamp_min(1)


def _divergences(a: Tensor, b: Tensor, pairs: Tensor) -> Tensor:
    """The sum of JS(a_i, b_j) = H((a_i + b_j) / 2) - (H(a_i) + H(b_j)) / 2 where `pairs`."""
    apart = entropy((a[:, None] + b) / 2) - (entropy(a)[:, None] + entropy(b)) / 2
    return torch.where(pairs, apart, 0).sum()


class SCDA(Method):
    """Pairs of logits behind a reversal, whose weight grows with the steps, and the mutual information of the target's
    own logits; nothing to remember."""

    Config = settings.SCDASettings
    config: settings.SCDASettings
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "labelled"})

    @property
    def mi(self) -> float:
        """The weight of the mutual information, which asks for all classes alike."""
        return self.config.mi if self.config.mi is not None else 0.0 if self.partial else 0.1

    def forward(self, seen: Seen) -> Term:
        assert seen.source is not None
        config, (z_s, z) = self.config, reversed_logits(seen, self.config.rate)
        pairs = scda_pairs(z_s, seen.source.labels, z, config.temperature, config.threshold)
        loss = -config.pairs * float(seen.progress) * pairs
        logged = {"discrepancy": pairs}
        if self.mi:
            mi = scda_mi(seen.logits)
            loss, logged = loss - self.mi * mi, {**logged, "mutual_information": mi}
        return Term(loss, logged)
