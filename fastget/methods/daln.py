"""DALN's formula (Chen et al., CVPR 2022): the classifier itself is the critic of the domains.

Shapes: B source and B' target images, C classes.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from fastget.common.reversal import reversed_gradient
from fastget.methods import settings
from fastget.methods.base import Method, Need, Seen, Term
from fastget.methods.bnm import bnm
from fastget.reference import Number, wide


def daln(
    z_s: Tensor,  # (B, C) source logits, of features behind a reversal
    z: Tensor,  # (B', C) target logits, likewise
) -> Tensor:
    """The nuclear-norm Wasserstein discrepancy |P_s|_* / B - |P|_* / B', P = softmax(z), |.|_* the sum of the singular
    values of all ranks' rows.

    It is to be raised, so that the loss is its negative. The gradient goes to both logits: the classifier raises
    |P_s|_* and lowers |P|_*, the features do the opposite.
    """
    return bnm(z, "paper") - bnm(z_s, "paper")


def warm_reversal(
    progress: Number,  # t = steps done / all steps, or a scalar on the device
    rate: float = 20.0,
) -> Number:
    """c(t) = 2 / (1 + exp(-rate t)) - 1, the factor of a reversal that is switched on early in a run.

    At 20 it is the authors' curve, 2 / (1 + exp(-i / 1000)) - 1, over 20,000 iterations.
    """
    if isinstance(progress, Tensor):
        return torch.tanh(rate * progress / 2)  # the same, and exact near 0
    return math.tanh(rate * progress / 2)


def reversed_logits(seen: Seen, rate: float) -> tuple[Tensor, Tensor]:
    """(B, C) of the source and (B', C) of the target, the classifier applied to features behind a reversal: it takes
    the gradient as it is, what lies below takes it times -c(t)."""
    assert seen.source is not None
    f = torch.cat([seen.source.features, seen.features]).to(seen.classifier.weight.dtype)
    z = wide(seen.classifier(reversed_gradient(f, float(warm_reversal(seen.progress, rate)))))
    rows = len(seen.source.labels)
    return z[:rows], z[rows:]


class DALN(Method):
    """The formula of logits behind a reversal; nothing to remember."""

    Config = settings.DALNSettings
    config: settings.DALNSettings
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "labelled"})

    def forward(self, seen: Seen) -> Term:
        return Term(-daln(*reversed_logits(seen, self.config.rate)))
