"""ATDOC with neighbourhood aggregation (Liang et al., CVPR 2021): labels from the nearest images in a memory.

The memory holds the feature and the sharpened prediction of every target image. An image that no batch has shown yet
has a row of zeros and takes no part in any vote (in the public code it votes with a random feature and a uniform
prediction, so that class 0 wins).

Shapes: B target images, C classes, D feature width, N images in the memory, K neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fastget.common.ranks import global_rows
from fastget.methods import settings
from fastget.methods.base import Method, Seen, Task, Term
from fastget.methods.pl import sharpen_by_column, weighted_cross_entropy

CHUNK = 65_536  # rows of the memory looked at together: no (B, N) matrix is made of a large one
NO_LABEL = -1


def filled(memory_f: Tensor) -> Tensor:
    """(N,) which rows of the memory a batch has filled."""
    return memory_f.abs().amax(1) > 0


def neighbour_labels(
    f: Tensor,  # (B, D)
    index: Tensor,  # (B,) int64, each image's own row of the memory
    memory_f: Tensor,  # (N, D) unit features; a row of zeros was never filled
    memory_q: Tensor,  # (N, C)
    k: int,
) -> tuple[Tensor, Tensor]:
    """a_b = mean of memory_q over the k rows nearest to f_b by inner product, its own row and empty ones left out:
    (labels argmax_c a_b, weights max_c a_b). Fewer than k: the mean over those; none: label -1, weight 0."""
    best = f.new_full((len(f), 0), -torch.inf)
    where = index.new_zeros(len(f), 0)
    for start in range(0, len(memory_f), CHUNK):
        part = memory_f[start : start + CHUNK]
        rows = torch.arange(start, start + len(part), device=f.device)
        near = (f @ part.T).masked_fill((rows == index[:, None]) | ~filled(part), -torch.inf)
        best, where = torch.cat([best, near], 1), torch.cat([where, rows.expand(len(f), -1)], 1)
        best, top = best.topk(min(k, best.shape[1]), dim=1)
        where = where.gather(1, top)
    there = torch.isfinite(best)
    votes = (memory_q[where] * there[..., None]).sum(1) / there.sum(1, keepdim=True).clamp_min(1)
    weights, labels = votes.max(1)
    return labels.masked_fill(~there.any(1), NO_LABEL), weights


class AtdocNA(Method):
    """The memory is overwritten, row by row, by what the step saw."""

    Config = settings.AtdocNA
    config: settings.AtdocNA
    memory_f: Tensor
    memory_q: Tensor

    def __init__(self, config: settings.AtdocNA, task: Task) -> None:
        super().__init__(config, task)
        self.register_buffer("memory_f", torch.zeros(task.target_images, task.feature_dim))
        self.register_buffer("memory_q", torch.zeros(task.target_images, task.num_classes))

    def forward(self, seen: Seen) -> Term:
        f = seen.features.detach().to(self.memory_f.dtype)
        labels, weights = neighbour_labels(f, seen.index, self.memory_f, self.memory_q, self.config.neighbours)
        return Term(weighted_cross_entropy(seen.logits, labels, weights))

    @torch.no_grad()
    def after_step(self, seen: Seen, term: Term, skip: Tensor | None, again: Callable[[], Seen]) -> None:
        looked = again() if self.config.second_look else seen
        f = global_rows(F.normalize(looked.features.to(self.memory_f.dtype), dim=1))
        q = global_rows(sharpen_by_column(looked.logits.to(self.memory_q.dtype).softmax(1)))
        index = global_rows(seen.index)
        last = _last_of(index)  # an image twice in a batch: its last row stands for both
        f, q = f[last], q[last]
        if skip is not None:
            f = torch.where(skip == 0, f, self.memory_f[index])
            q = torch.where(skip == 0, q, self.memory_q[index])
        self.memory_f[index], self.memory_q[index] = f, q

    def check(self) -> None:
        """The memory is what a checkpoint could not go on from."""
        if not bool(torch.isfinite(self.memory_f.sum() + self.memory_q.sum())):
            raise ValueError("non-finite features in the memory of ATDOC-NA")

    def figures(self) -> dict[str, Tensor]:
        rows = filled(self.memory_f)
        classes = torch.bincount(self.memory_q.argmax(1)[rows], minlength=self.task.num_classes)
        return {"memory/filled": rows.float().mean(), "memory/classes": classes / rows.sum().clamp_min(1)}


def _last_of(index: Tensor) -> Tensor:
    """(B,) for each row the last one of the same image."""
    order = torch.arange(1, len(index) + 1, device=index.device)
    return ((index[:, None] == index) * order).argmax(1)
