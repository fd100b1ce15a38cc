"""PL: pseudo-labels sharpened by column, as ATDOC does it.

Shapes: B target images, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastget.common.ranks import global_sum
from fastget.methods import settings
from fastget.methods.base import Method, Seen, Term


def pl(z: Tensor) -> Tensor:
    """sum_b w_b CE(z_b, argmax q_b) / sum_b w_b, w_b = max q_b, q = sharpen_by_column(softmax(z)) a constant, z (B, C).

    A row may get a label that is not its argmax: rare classes are favoured. (In the public code gradient leaks
    through w.)
    """
    weights, labels = sharpen_by_column(torch.softmax(z.detach(), 1)).max(1)
    return weighted_cross_entropy(z, labels, weights)


def weighted_cross_entropy(
    z: Tensor,  # (B, C)
    labels: Tensor,  # (B,) int64; -1: none, its weight counts as 0
    weights: Tensor,  # (B,)
) -> Tensor:
    """sum_b w_b CE(z_b, label_b) / sum_b w_b, labels and weights constant; 0 where no weight is left. The batch is the
    global one."""
    labels, weights = labels.detach(), torch.where(labels < 0, 0, weights.detach())
    each = F.cross_entropy(z, labels.clamp_min(0), reduction="none")
    shares = weights / _not_zero(global_sum(weights.sum()))
    return global_sum((shares * each).sum())


def sharpen_by_column(p: Tensor) -> Tensor:
    """(B, C) q_bc = p_bc^2 / sum_b' p_b'c^2 over the global batch, 0 where the column's squares underflow. Its rows do
    not sum to 1."""
    squared = p.square()
    return squared / _not_zero(global_sum(squared.sum(0)))


def _not_zero(total: Tensor) -> Tensor:
    """0 / total is 0 where nothing was summed. No larger floor: a class may be ever so rare, and its column still sums
    to 1."""
    return torch.where(total == 0, 1, total)


class PL(Method):
    """The formula, and nothing to remember."""

    Config = settings.PLSettings
    config: settings.PLSettings
    capturable = True

    def forward(self, seen: Seen) -> Term:
        return Term(pl(seen.logits))

    def labels(self, seen: Seen) -> Tensor:
        """As ATDOC's PL inside MixMatch: the classifier's argmax, without the sharpening."""
        return seen.logits.argmax(1)
