"""The alpha-power term (of ARPM: Gu et al., IJCV 2024): predictions become sure, and no class is asked for.

Shapes: B target images, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastget.common.ranks import global_mean


def alpha_power(
    z: Tensor,  # (B, C) target logits
    alpha: float = 6.0,
) -> Tensor:
    """-mean_b sum_c p_bc^alpha, p = softmax(z), over the global batch: from -C^(1 - alpha) to -1. The gradient goes to
    z; where the classifier is to rest, its weights are the caller's to detach."""
    return -global_mean(torch.exp(alpha * torch.log_softmax(z, 1)).sum(1))
