"""CDAN+E's formula (Long et al., NeurIPS 2018). The base model that trains by it is `fastget.bases.cdan`.

Shapes: B source and B' target images, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastget.common.ranks import global_sum
from fastget.methods.minent import entropies


def cdan_entropy(
    d_logits: Tensor,  # (B + B',), the discriminator's, source rows first
    z_s: Tensor,  # (B, C) source logits
    z: Tensor,  # (B', C) target logits
) -> Tensor:
    """sum_i v_i BCE(d_i, domain_i) / sum_i v_i, the source's domain 1 and the target's 0; v_i = w_i / (the sum of w
    over i's domain) with w_i = 1 + exp(-H(p_i)).

    The sums that divide are constants, the entropies are not. The batch is the global one.
    """
    d_logits = d_logits.reshape(-1)
    domains = torch.cat([torch.ones_like(d_logits[: len(z_s)]), torch.zeros_like(d_logits[len(z_s) :])])
    v = torch.cat([_share(z_s), _share(z)])
    each = F.binary_cross_entropy_with_logits(d_logits, domains, reduction="none")
    return global_sum((v * each).sum()) / global_sum(v.detach().sum())


def _share(z: Tensor) -> Tensor:
    """(B,) w over its sum, which is a constant."""
    w = 1 + torch.exp(-entropies(z))
    return w / global_sum(w.detach().sum())
