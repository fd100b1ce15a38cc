"""MME, minimax entropy for semi-supervised adaptation (Saito et al., ICCV 2019).

The classifier's weights maximise the entropy of the unlabelled target images, everything below minimises it. Each
iteration makes two steps of the optimizer: one for the labelled images, one for this term.

Shapes: B unlabelled target images, C classes.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fastget.common.ranks import global_mean
from fastget.common.reversal import reversed_gradient
from fastget.methods import settings
from fastget.methods.base import Method, Need, Seen, Term
from fastget.methods.minent import entropies


def mme(
    z: Tensor,  # (B, C) target logits
    weight: float = 0.1,
) -> Tensor:
    """weight * mean_b sum_c p_bc log p_bc: the negative entropy in nats, over the global batch."""
    return -weight * global_mean(entropies(z))


class MME(Method):
    """The formula, the gradient reversed between the features and the head."""

    Config = settings.MMESettings
    config: settings.MMESettings
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "own step"})

    def forward(self, seen: Seen) -> Term:
        z = seen.classifier(reversed_gradient(seen.features, 1.0).to(seen.classifier.weight.dtype))
        return Term(mme(z, 1.0))  # method.weight is the formula's
