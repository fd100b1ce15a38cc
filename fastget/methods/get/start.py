"""The pass over the whole target that GeT's memory starts from. Shapes: C classes, D feature width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastget import reference


class Pass:
    """Running sums of the pass that sets mu, in float64: the result does not depend on how the set is cut."""

    def __init__(self, num_classes: int, feature_dim: int, keep: bool) -> None:
        self.num_classes, self.feature_dim, self.keep = num_classes, feature_dim, keep
        self.total = torch.zeros(num_classes * (feature_dim + 1) + 2, dtype=torch.float64)
        self.chunks: list[Tensor] = []

    def add(self, features: Tensor, predictions: Tensor) -> None:
        sums, counts = reference.class_sums(features.double(), predictions, self.num_classes)
        norms = torch.linalg.vector_norm(features.double(), dim=1)
        part = torch.cat([sums.flatten(), counts, counts.new_tensor([len(features)]), norms.sum()[None]])
        self.total = self.total.to(part.device) + part
        if self.keep:
            self.chunks.append(features)


def split_totals(total: Tensor, C: int, D: int) -> Sequence[Tensor]:
    """Class sums (C, D), class counts (C,), rows (), sum of the rows' norms ()."""
    return total[: C * D].view(C, D), total[C * D : C * D + C], total[-2], total[-1]
