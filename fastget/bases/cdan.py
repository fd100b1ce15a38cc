"""CDAN+E as a base model (Long et al., NeurIPS 2018), as ATDOC runs it: features that no discriminator can tell apart.

The discriminator sees f x p, the outer product of features and predictions, through a reversal of gradients whose
factor g(t) grows from 0 to 1. The predictions in the product are constants; those in the entropy weights are not, and
their gradient is reversed as well.

Shapes: B source and B' target images (SSDA's labelled ones among them), C classes, D feature width.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastget.bases.base import Losses, Need, Step, widened
from fastget.bases.plain import Plain
from fastget.bases.settings import CDANSettings
from fastget.common.ranks import global_sum
from fastget.common.reversal import discriminator, reversed_gradient
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


class CDAN(Plain):
    """Cross-entropy of the source + cdan.weight * the domains' term + w(t) * the method's."""

    capturable = False  # the reversal's factor is a number of Python's that grows
    needs: ClassVar[frozenset[Need]] = frozenset({"target"})
    config: CDANSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        classifier = self.network.classifier
        self.map = JointMap(classifier.in_features, classifier.out_features, self.config.random_dim)
        self.discriminator = discriminator(self.map.width, self.config.hidden)

    def forward(self, step: Step) -> Losses:
        source, target = self.domains(step)
        assert source is not None
        assert target is not None
        supervised, on_source = self.supervised(step, source, target)
        with self.timer.phase("base model"):
            domain = self.domain_loss(source.features, widened(source.logits), target.features, widened(target.logits),
                                      reversal(float(step.progress)))  # fmt: skip
        losses = Losses(supervised + self.config.weight * domain, on_source, logged={"loss_domain": domain})
        return self.with_term(step, source, target, losses)

    def domain_loss(self, f_s: Tensor, z_s: Tensor, f: Tensor, z: Tensor, factor: float) -> Tensor:
        """The discriminator's loss; what reaches features and logits is reversed."""
        f = reversed_gradient(torch.cat([f_s, f]), factor)
        p = torch.softmax(torch.cat([z_s, z]).detach(), 1)
        d_logits = widened(self.discriminator(self.map(f, p.to(f.dtype))))
        with torch.autocast(f.device.type, enabled=False):
            return cdan_entropy(d_logits, reversed_gradient(z_s, factor), reversed_gradient(z, factor))


class JointMap(nn.Module):
    """Features and predictions as one vector: all C * D products, or a random projection of them."""

    of_features: Tensor
    of_classes: Tensor

    def __init__(self, features: int, classes: int, random_dim: int | None) -> None:
        super().__init__()
        self.width = random_dim or features * classes
        self.random = random_dim is not None
        if self.random:
            self.register_buffer("of_features", torch.randn(features, self.width))
            self.register_buffer("of_classes", torch.randn(classes, self.width))

    def forward(self, f: Tensor, p: Tensor) -> Tensor:
        """(B, D), (B, C) -> (B, width)."""
        if self.random:
            return (f @ self.of_features.to(f.dtype)) * (p @ self.of_classes.to(p.dtype)) / math.sqrt(self.width)
        return (p[:, :, None] * f[:, None, :]).flatten(1)


def reversal(progress: float) -> float:
    """g(t) = 2 / (1 + exp(-10 t / T)) - 1."""
    return 2 / (1 + math.exp(-10 * progress)) - 1
