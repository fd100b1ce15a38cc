"""DALN's formula (Chen et al., CVPR 2022): the classifier itself is the critic of the domains.

Shapes: B source and B' target images, C classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastget.methods.bnm import bnm
from fastget.reference import Number


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
