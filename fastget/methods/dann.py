"""DANN's formula, domain-adversarial training (Ganin et al., JMLR 2016): features that no discriminator tells apart.

Shapes: B source and B' target images of this rank.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fastget.common.ranks import global_sum
from fastget.common.reversal import discriminator, reversed_gradient
from fastget.methods import settings
from fastget.methods.base import Method, Need, Seen, Task, Term
from fastget.methods.daln import warm_reversal
from fastget.reference import wide


def dann(
    d_logits: Tensor,  # (B + B',) or (B + B', 1), the discriminator's of the features, source rows first
    sources: int,  # B
) -> Tensor:
    """(mean_i BCE(d_i, 1) over the source + mean_j BCE(d_j, 0) over the target) / 2, each over the global batch; a
    domain without rows counts as 0.

    The gradient goes to d_logits. The features stand behind a reversal, which is the caller's.
    """
    d_logits = d_logits.reshape(-1)
    on_source, on_target = d_logits[:sources], d_logits[sources:]
    each = [
        F.binary_cross_entropy_with_logits(on_source, torch.ones_like(on_source), reduction="sum"),
        F.binary_cross_entropy_with_logits(on_target, torch.zeros_like(on_target), reduction="sum"),
    ]
    rows = [d_logits.new_full((), len(domain)) for domain in (on_source, on_target)]
    return (global_sum(torch.stack(each)) / global_sum(torch.stack(rows)).clamp_min(1)).sum() / 2


class DANN(Method):
    """A discriminator of the features, behind a reversal whose factor grows to 1; SSDA's labelled images are target."""

    Config = settings.DANNSettings
    config: settings.DANNSettings
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "labelled"})
    advice: ClassVar[str] = "network.bottleneck_norm=true, or a lower method.weight"

    def __init__(self, config: settings.DANNSettings, task: Task) -> None:
        super().__init__(config, task)
        self.discriminator = discriminator(task.feature_dim, config.hidden)

    def forward(self, seen: Seen) -> Term:
        assert seen.source is not None
        target = [seen.features] if seen.shots is None else [seen.features, seen.shots.features]
        f = torch.cat([seen.source.features, *target]).to(next(self.discriminator.parameters()).dtype)
        factor = float(warm_reversal(seen.progress, self.config.rate))
        return Term(dann(wide(self.discriminator(reversed_gradient(f, factor))), len(seen.source.labels)))
