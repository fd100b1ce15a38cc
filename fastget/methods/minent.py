"""MinEnt: the entropy of the predictions, as ATDOC scales it.

Shapes: B target images, C classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastget.common.ranks import global_mean
from fastget.methods import settings
from fastget.methods.base import Method, Seen, Term


def minent(z: Tensor) -> Tensor:
    """mean_b H(softmax(z_b)) / log C, in [0, 1]: exact, where public code adds 1e-5 under the log. z is (B, C)."""
    return global_mean(entropies(z)) / math.log(z.shape[1])


def entropies(z: Tensor) -> Tensor:
    """(B,) H(softmax(z_b)) in nats, exact also where a probability underflows."""
    log_p = torch.log_softmax(z, 1)
    p = log_p.exp()
    return -(p * torch.where(p > 0, log_p, 0)).sum(1)  # where p underflows the term and its gradient are 0


def entropy(p: Tensor) -> Tensor:
    """-sum p log p over the last axis, of probabilities themselves. Where one is 0, the term and its gradient are 0."""
    return -(p * torch.where(p > 0, p, 1).log()).sum(-1)


class MinEnt(Method):
    """The formula, and nothing to remember."""

    Config = settings.MinEntSettings
    config: settings.MinEntSettings
    capturable = True

    def forward(self, seen: Seen) -> Term:
        return Term(minent(seen.logits))
