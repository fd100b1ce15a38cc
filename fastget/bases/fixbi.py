"""FixBi's formulas (Na et al., CVPR 2021): two networks, one nearer to each domain, that teach each other.

Shapes: B target images, paired with as many of the source, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastget.common.ranks import global_mean, global_sum
from fastget.methods.pl import weighted_cross_entropy

FLOOR = 1e-7  # of 1 - p under the penalty's log
DEVIATIONS = 2.0  # below the mean confidence, where a prediction stops being sure


def fixbi_threshold(
    z: Tensor,  # (B, C) one network's target logits
    deviations: float = DEVIATIONS,
) -> Tensor:
    """() mean(q) - deviations * std(q), q_b = max softmax(z_b), std unbiased over the global batch (of one row: 0). A
    constant."""
    q = torch.softmax(z.detach(), 1).amax(1)
    rows = global_sum(q.new_full((), len(q)))
    mean = global_sum(q.sum()) / rows
    variance = global_sum((q - mean).square().sum()) / (rows - 1).clamp_min(1)
    return mean - deviations * variance.sqrt()


def fixbi_mixup(
    z: Tensor,  # (B, C) logits of share * source image + (1 - share) * target image
    y_s: Tensor,  # (B,) int64 the source's labels
    y_t: Tensor,  # (B,) int64 the network's own of the target
    share: float,
) -> Tensor:
    """share * mean_b CE(z_b, y_s) + (1 - share) * mean_b CE(z_b, y_t), over the global batch; the gradient goes to z,
    labels are constants."""
    of_source = global_mean(F.cross_entropy(z, y_s, reduction="none"))
    of_target = global_mean(F.cross_entropy(z, y_t, reduction="none"))
    return share * of_source + (1 - share) * of_target


def fixbi_self_penalty(
    z: Tensor,  # (B, C) logits of the target rows whose confidence is below the threshold
    temperature: float | Tensor,  # a learned scalar
) -> Tensor:
    """mean_b -log(1 - softmax(z_b / temperature)[argmax z_b]) over these rows of all ranks, 0 where there are none; 1 -
    p is floored at 1e-7. The gradient goes to z and to the temperature."""
    each = self_penalties(z, temperature)
    return global_sum(each.sum()) / global_sum(each.new_full((), len(each))).clamp_min(1)


def self_penalties(z: Tensor, temperature: float | Tensor) -> Tensor:
    """(B,) the penalty of each row. What is left beside the largest is summed, and not 1 less it, which rounds."""
    p = torch.softmax(z / temperature, 1)
    rest = p.scatter(1, z.detach().argmax(1, keepdim=True), 0).sum(1)
    return -rest.clamp_min(FLOOR).log()


def fixbi_matching(
    z: Tensor,  # (B, C) one network's target logits
    peer: Tensor,  # (B, C) the other's
    deviations: float = DEVIATIONS,
) -> Tensor:
    """mean CE(z_b, argmax peer_b) over the rows where max softmax(peer_b) >= fixbi_threshold(peer), of the global
    batch, 0 where there are none. The gradient goes to z; the peer is a constant."""
    q, labels = torch.softmax(peer.detach(), 1).max(1)
    sure = q >= fixbi_threshold(peer, deviations)
    return weighted_cross_entropy(z, labels, sure.to(z.dtype))


def fixbi_consistency(
    z_a: Tensor,  # (B, C) one network's logits of the half-and-half images
    z_b: Tensor,  # (B, C) the other's of the same images
) -> Tensor:
    """mean over B * C of (z_a - z_b)^2, over the global batch; the gradient goes to both."""
    return global_mean((z_a - z_b).square().mean(1))
