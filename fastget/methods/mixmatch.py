"""MixMatch's guess of labels (Berthelot et al., NeurIPS 2019). The base model is `fastget.bases.mixmatch`.

Shapes: B images, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mixmatch_guess(
    z1: Tensor,  # (B, C) logits of one view
    z2: Tensor,  # (B, C) of another view of the same images
    temperature: float = 0.5,
) -> Tensor:
    """(B, C) p^(1 / temperature) / its row sum, p the mean of the two views' softmaxes. A constant."""
    log_p = torch.logaddexp(torch.log_softmax(z1.detach(), 1), torch.log_softmax(z2.detach(), 1))
    return torch.softmax(log_p / temperature, 1)
