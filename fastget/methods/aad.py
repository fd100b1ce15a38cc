"""AaD's formula, attracting and dispersing (Yang et al., NeurIPS 2022): neighbours agree, the rest of a batch does not.

Shapes: B target images, C classes, K neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from fastget.common.ranks import global_mean, global_sum
from fastget.methods import settings
from fastget.methods.base import Extra, Need, Seen, Term, Whole
from fastget.methods.shared_memory import SharedMemory
from fastget.reference import Number


def aad(
    z: Tensor,  # (B, C) target logits
    near: Tensor,  # (B, K, C) the predictions that a memory holds of each image's nearest
    alpha: Number,
) -> Tensor:
    """-mean_b sum_k p_b . near_bk + alpha * mean_b sum_{m != b} p_b . p_m, p = softmax(z), over the global batch.

    `near` is a constant; the second sum carries gradient through both of its factors.
    """
    p = torch.softmax(z, 1)
    attracting = global_mean((p * near.detach().sum(1)).sum(1))
    pairs = global_sum(p.sum(0)).square().sum() - global_sum(p.square().sum())
    return alpha * pairs / global_sum(p.new_full((), len(p))) - attracting


class AaD(SharedMemory):
    """The memory is filled from the whole target at the start, then row by row by what each step saw."""

    Config = settings.AaDSettings
    config: settings.AaDSettings
    section = "aad"
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "warm-up", "source-free"})
    warm_share: ClassVar[float] = 0.5

    @property
    def extra(self) -> frozenset[Extra]:
        return frozenset({"whole target"})

    def start(self, whole: Whole) -> None:
        self.write_all(whole)

    def forward(self, seen: Seen) -> Term:
        near, _ = self.neighbour_sums(seen)
        return Term(aad(seen.logits, near[:, None], (1 + 10 * seen.progress) ** -self.config.decay))

    @torch.no_grad()
    def after_step(self, seen: Seen, term: Term, skip: Tensor | None, again: Callable[[], Seen]) -> None:
        self.write(seen.features, seen.logits.softmax(1), seen.index, skip)
