"""MME, minimax entropy for semi-supervised adaptation (Saito et al., ICCV 2019).

Shapes: B unlabelled target images, C classes.
"""

from __future__ import annotations

from torch import Tensor

from fastget.common.ranks import global_mean
from fastget.methods.minent import entropies


def mme(
    z: Tensor,  # (B, C) target logits
    weight: float = 0.1,
) -> Tensor:
    """weight * mean_b sum_c p_bc log p_bc: the negative entropy in nats, over the global batch."""
    return -weight * global_mean(entropies(z))
