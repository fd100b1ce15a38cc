"""SAFN's and HAFN's formulas, stepwise and hard adaptive feature norms (Xu et al., ICCV 2019).

Shapes: B images of one domain, D feature width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastget.common.ranks import global_mean


def safn(
    f: Tensor,  # (B, D), what the classifier reads
    step: float,
) -> Tensor:
    """mean_b (|f_b| - sg(|f_b|) - step)^2 over the global batch.

    The value is always step^2. The gradient, -2 step / B * f_b / |f_b|, lengthens every feature; a feature of length 0
    has none. (The paper's constant is the length under the last iterate's weights, the authors' code has this one.)
    """
    lengths = torch.linalg.vector_norm(f, dim=1)
    return global_mean((lengths - lengths.detach() - step).square())


def hafn(
    f: Tensor,  # (B, D)
    radius: float,
) -> Tensor:
    """(mean_b |f_b| - radius)^2, the mean over the global batch; the gradient goes to f."""
    return (global_mean(torch.linalg.vector_norm(f, dim=1)) - radius).square()
