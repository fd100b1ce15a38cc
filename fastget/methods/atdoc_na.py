"""ATDOC with neighbourhood aggregation (Liang et al., CVPR 2021): labels from the nearest images in a memory.

The memory holds the feature and the sharpened prediction of every target image. An image that no batch has shown yet
takes no part in any vote (in the public code it votes with a random feature and a uniform prediction, so that class 0
wins).

Shapes: B target images.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastget.methods import settings
from fastget.methods.base import Extra, Seen, Term
from fastget.methods.neighbours import elected, neighbour_labels, wide
from fastget.methods.pl import sharpen_by_column, weighted_cross_entropy
from fastget.methods.shared_memory import SharedMemory

__all__ = ["AtdocNA", "neighbour_labels"]


class AtdocNA(SharedMemory):
    """The memory is overwritten, row by row, by what the step saw."""

    Config = settings.AtdocNASettings
    config: settings.AtdocNASettings
    section = "atdoc-na"

    @property
    def extra(self) -> frozenset[Extra]:
        return frozenset({"second look"} if self.config.second_look else ())

    @torch.no_grad()
    def neighbours(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """(B,) labels, -1 where there is none, and their weights. Every rank calls it."""
        return elected(*self.neighbour_sums(seen))

    def labels(self, seen: Seen) -> Tensor:
        """(B,) int64 hard labels, -1 where there is none."""
        return self.neighbours(seen)[0]

    def forward(self, seen: Seen) -> Term:
        return Term(weighted_cross_entropy(seen.logits, *self.neighbours(seen)))

    @torch.no_grad()
    def after_step(self, seen: Seen, term: Term, skip: Tensor | None, again: Callable[[], Seen]) -> None:
        looked = again() if self.config.second_look else seen
        q = sharpen_by_column(looked.logits.to(wide(looked.logits.dtype)).softmax(1))
        self.write(looked.features, q, seen.index, skip)
