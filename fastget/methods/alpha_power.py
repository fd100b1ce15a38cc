"""The alpha-power term (of ARPM: Gu et al., IJCV 2024): predictions become sure, and no class is asked for.

Shapes: B target images, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from fastget.common.ranks import global_mean
from fastget.methods import settings
from fastget.methods.base import Method, Seen, Term
from fastget.reference import wide


def alpha_power(
    z: Tensor,  # (B, C) target logits
    alpha: float = 6.0,
) -> Tensor:
    """-mean_b sum_c p_bc^alpha, p = softmax(z), over the global batch: from -C^(1 - alpha) to -1. The gradient goes to
    z; where the classifier is to rest, its weights are the caller's to detach."""
    return -global_mean(torch.exp(alpha * torch.log_softmax(z, 1)).sum(1))


class AlphaPower(Method):
    """The formula of the features, the classifier's weights constant; nothing to remember."""

    Config = settings.AlphaPowerSettings
    config: settings.AlphaPowerSettings
    capturable = True

    def forward(self, seen: Seen) -> Term:
        weights = {name: value.detach() for name, value in seen.classifier.named_parameters()}
        z = functional_call(seen.classifier, weights, (seen.features.to(seen.classifier.weight.dtype),))
        return Term(alpha_power(wide(z), self.config.alpha))
