"""MCC, minimum class confusion (Jin et al., ECCV 2020).

Shapes: B target images, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastget.common.ranks import global_sum
from fastget.methods import settings
from fastget.methods.base import Method, Seen, Term

FLOOR = 1e-12  # of a row of the confusion: a class that nobody predicts has none


def mcc(
    z: Tensor,  # (B, C) target logits
    temperature: float = 1.0,
) -> Tensor:
    """1 - mean_c M_cc / sum_c' M_cc' with M = P^T diag(v) P, P = softmax(z / temperature); v_b = 1 + exp(-H(P_b)),
    scaled to the mean 1, is a constant. The batch is the global one."""
    P = torch.softmax(z / temperature, 1)
    v = 1 + torch.exp(-torch.special.entr(P).sum(1)).detach()
    sums = global_sum(torch.stack([v.sum(), v.new_full((), len(v))]))
    M = global_sum((v[:, None] * P).T @ P) * (sums[1] / sums[0])
    return 1 - (M.diagonal() / M.sum(1).clamp_min(FLOOR)).mean()


class MCC(Method):
    """The formula, and nothing to remember."""

    Config = settings.MCCSettings
    config: settings.MCCSettings
    capturable = True
    advice = "a higher mcc.temperature"

    def forward(self, seen: Seen) -> Term:
        return Term(mcc(seen.logits, self.config.temperature))
