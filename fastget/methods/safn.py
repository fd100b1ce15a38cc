"""SAFN's and HAFN's formulas, stepwise and hard adaptive feature norms (Xu et al., ICCV 2019).

Shapes: B images of one domain, D feature width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fastget.common.ranks import global_mean
from fastget.methods import settings
from fastget.methods.base import Method, Need, Seen, Term
from fastget.methods.minent import entropies
from fastget.reference import wide


def safn(
    f: Tensor,  # (B, D), what the classifier reads
    step: float,
) -> Tensor:
    """mean_b (|f_b| - sg(|f_b|) - step)^2 over the global batch.

    The value is always step^2. The gradient, -2 step / B * f_b / |f_b|, lengthens every feature; a feature of length 0
    has none. (The paper's constant is the length under the last iterate's weights, the authors' code has this one.)
    """
    lengths = torch.linalg.vector_norm(f, dim=1)
    return global_mean((lengths - lengths.detach() - step).square())


def hafn(
    f: Tensor,  # (B, D)
    radius: float,
) -> Tensor:
    """(mean_b |f_b| - radius)^2, the mean over the global batch; the gradient goes to f."""
    return (global_mean(torch.linalg.vector_norm(f, dim=1)) - radius).square()


class SAFN(Method):
    """The norms' term of both domains, and the target's entropy. The stepwise term's value is a constant, so that the
    features' mean lengths are logged. SSDA's labelled target images have no part in it."""

    Config = settings.SAFNSettings
    config: settings.SAFNSettings
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "labelled"})
    capturable = True

    def forward(self, seen: Seen) -> Term:
        assert seen.source is not None
        domains = {"source": wide(seen.source.features), "target": wide(seen.features)}
        loss = self.config.weight * torch.stack([self.norms(f) for f in domains.values()]).sum()
        if self.config.entropy:
            loss = loss + self.config.entropy * global_mean(entropies(seen.logits))
        return Term(loss, {f"length_{name}": f.detach().norm(dim=1).mean() for name, f in domains.items()})

    def norms(self, f: Tensor) -> Tensor:
        return safn(f, self.config.step) if self.config.norm == "stepwise" else hafn(f, self.config.radius)
