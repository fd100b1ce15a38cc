"""AaD's formula, attracting and dispersing (Yang et al., NeurIPS 2022): neighbours agree, the rest of a batch does not.

Shapes: B target images, C classes, K neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastget.common.ranks import global_mean, global_sum
from fastget.reference import Number


def aad(
    z: Tensor,  # (B, C) target logits
    near: Tensor,  # (B, K, C) the predictions that a memory holds of each image's nearest
    alpha: Number,
) -> Tensor:
    """-mean_b sum_k p_b . near_bk + alpha * mean_b sum_{m != b} p_b . p_m, p = softmax(z), over the global batch.

    `near` is a constant; the second sum carries gradient through both of its factors.
    """
    p = torch.softmax(z, 1)
    attracting = global_mean((p * near.detach().sum(1)).sum(1))
    pairs = global_sum(p.sum(0)).square().sum() - global_sum(p.square().sum())
    return alpha * pairs / global_sum(p.new_full((), len(p))) - attracting
