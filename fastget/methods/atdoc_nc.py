"""ATDOC with nearest centroids (Liang et al., CVPR 2021): labels from a memory of one centroid a class.

A class that nobody predicts keeps its centroid (in the public code it decays to nothing, and the loss to NaN).

Shapes: B target images, C classes, D feature width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fastget import reference
from fastget.common.ranks import global_mean, global_sum
from fastget.methods import settings
from fastget.methods.base import Extra, Method, Seen, Task, Term


def nearest_centroid_labels(
    f: Tensor,  # (B, D)
    memory: Tensor,  # (C, D)
) -> Tensor:
    """argmax_c f_b . M_c / |M_c|, the lowest index on a tie. (B,)."""
    return (f @ F.normalize(memory, dim=1).T).argmax(1)


def update_centroids(
    memory: Tensor,  # (C, D)
    f: Tensor,  # (B, D)
    labels: Tensor,  # (B,) int64
    step: float,
) -> Tensor:
    """(1 - step) M_c + step * mean of the features labelled c, over the global batch; a class with none is left as it
    was. (C, D)."""
    sums, counts = reference.class_sums(f, labels, len(memory))
    return reference.update_prototypes(memory, global_sum(sums), global_sum(counts), step)


class AtdocNC(Method):
    """Labels come from the centroids, and the centroids from the classifier's labels."""

    Config = settings.AtdocNCSettings
    config: settings.AtdocNCSettings
    memory: Tensor

    def __init__(self, config: settings.AtdocNCSettings, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("memory", F.normalize(torch.rand(task.num_classes, task.feature_dim), dim=1))

    @property
    def extra(self) -> frozenset[Extra]:
        return frozenset({"second look"} if self.config.second_look else ())

    def forward(self, seen: Seen) -> Term:
        return Term(global_mean(F.cross_entropy(seen.logits, self.labels(seen), reduction="none")))

    def labels(self, seen: Seen) -> Tensor:
        return nearest_centroid_labels(seen.features.detach().to(self.memory.dtype), self.memory)

    @torch.no_grad()
    def after_step(self, seen: Seen, term: Term, skip: Tensor | None, again: Callable[[], Seen]) -> None:
        looked = again() if self.config.second_look else seen
        features = looked.features.to(self.memory.dtype)
        moved = update_centroids(self.memory, features, looked.logits.argmax(1), self.config.step)
        self.memory.copy_(moved if skip is None else torch.where(skip == 0, moved, self.memory))
