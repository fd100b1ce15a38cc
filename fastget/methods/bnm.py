"""BNM, batch nuclear-norm maximisation (Cui et al., CVPR 2020).

Shapes: B target images of the global batch, C classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastget.common.ranks import gathered
from fastget.methods import settings
from fastget.methods.base import Method, Seen, Term
from fastget.methods.settings import BNMNorm


def bnm(
    z: Tensor,  # (B, C) target logits
    norm: BNMNorm = "atdoc",
) -> Tensor:
    """-c * the sum of the singular values of P = softmax(z), the rows of all ranks together. Three c are in use:
    atdoc sqrt(min(B, C)) / B, paper 1 / B, mean (the authors' code) 1 / min(B, C)."""
    P = gathered(torch.softmax(z, 1))
    B, C = P.shape
    scale = {"atdoc": math.sqrt(min(B, C)) / B, "paper": 1 / B, "mean": 1 / min(B, C)}[norm]
    finite = torch.where(torch.isfinite(P).all(), P, 0)  # or the decomposition raises, where a loss of NaN is wanted
    norms: Tensor = torch.linalg.matrix_norm(finite, "nuc")
    return -scale * norms + 0 * P.sum()


class BNM(Method):
    """The formula, and nothing to remember."""

    Config = settings.BNMSettings
    config: settings.BNMSettings

    def forward(self, seen: Seen) -> Term:
        return Term(bnm(seen.logits, self.config.norm))
