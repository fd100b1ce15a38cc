"""The look-up of ATDOC-NA: the nearest rows of a memory, and what they vote for.

The memory is read in chunks, so that no (B, N) matrix is ever made, and may be kept in float16: a chunk is widened as
it is read. It may be shared out over ranks: each finds the nearest rows in its own share, for the global batch.

Shapes: B target images, C classes, D feature width, N images in the memory, K neighbours, W ranks, S rows of a share.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastget.common.ranks import global_rows, global_sum, this_rank, world_size

LOOK = 64 * 2**20  # bytes of a chunk: its features, widened, and its scores
NO_LABEL = -1
TIE = 64  # roundings that two votes may differ by and still be equal


def wide(dtype: torch.dtype) -> torch.dtype:
    """What is stored in it is computed with in float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def filled(memory_f: Tensor) -> Tensor:
    """(N,) which rows of the memory a batch has filled."""
    lengths: Tensor = torch.linalg.vector_norm(memory_f, dim=1)
    return lengths > 0


def neighbour_labels(
    f: Tensor,  # (B, D)
    index: Tensor,  # (B,) int64, each image's own row of the memory
    memory_f: Tensor,  # (N, D) unit features; a row of zeros was never filled
    memory_q: Tensor,  # (N, C)
    k: int,
) -> tuple[Tensor, Tensor]:
    """a_b = mean of memory_q over the k rows nearest to f_b by inner product, its own row and empty ones left out, of
    equally near ones the first: (labels argmax_c a_b, weights max_c a_b). Fewer than k: the mean over those; none:
    label -1, weight 0."""
    best, where = nearest(f, index, memory_f, k)
    return elected(_summed(memory_q, where, torch.isfinite(best)), best)


def shared_neighbour_sums(
    f: Tensor,  # (B, D)
    index: Tensor,  # (B,) int64, each image's own row of the whole memory
    memory_f: Tensor,  # (S, D) this rank's share of it: the rows from rank * S on
    memory_q: Tensor,  # (S, C)
    k: int,
) -> tuple[Tensor, Tensor]:
    """(B, C) sums of memory_q over the k nearest, as in `neighbour_labels`, and (B, k) their inner products, -inf where
    there is none, of a memory that is shared out over ranks. They exchange the features of the global batch, W * k
    scores for each of its rows, and (W * B, C) sums of votes."""
    if world_size() == 1:
        best, where = nearest(f, index, memory_f, k)
        return _summed(memory_q, where, torch.isfinite(best)), best
    first, share = this_rank() * len(memory_f), len(memory_f)
    best, where = nearest(global_rows(f), global_rows(index) - first, memory_f, k)
    best, where = _merged(_side_by_side(best), _side_by_side(where + first), k)  # the same on all ranks
    mine = torch.isfinite(best) & (where >= first) & (where < first + share)
    sums = global_sum(_summed(memory_q, (where - first).clamp(0, share - 1), mine))
    mine_of_all = [rows.chunk(world_size())[this_rank()] for rows in (sums, best)]
    return mine_of_all[0], mine_of_all[1]


def nearest(f: Tensor, index: Tensor, memory_f: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(B, min(k, N)) largest inner products and their rows, the lowest first among equals; -inf where there is none.
    An image's own row is left out; its index may lie outside of this memory."""
    f = f.to(wide(torch.promote_types(f.dtype, memory_f.dtype)))
    best, where = f.new_empty(len(f), 0), index.new_empty(len(f), 0)
    size = max(1, LOOK // (f.element_size() * (f.shape[1] + len(f))))
    for start in range(0, len(memory_f), size):
        near, rows = _nearest_in_chunk(f, index - start, memory_f[start : start + size], k)
        best, where = _merged(torch.cat([best, near], 1), torch.cat([where, rows + start], 1), k)
    return best, where


def _nearest_in_chunk(f: Tensor, index: Tensor, part: Tensor, k: int) -> tuple[Tensor, Tensor]:
    part = part.to(f.dtype)
    scores = (f @ part.T).masked_fill_(~filled(part), -torch.inf)
    own = index.clamp(0, len(part) - 1)[:, None]
    scores.scatter_(1, own, scores.gather(1, own).masked_fill(own == index[:, None], -torch.inf))
    near, rows = [], []
    for _ in range(min(k, len(part))):  # topk leaves it open which of equal ones it takes; max takes the first
        score, row = scores.max(1, keepdim=True)
        scores.scatter_(1, row, -torch.inf)
        near.append(score)
        rows.append(row)
    return torch.cat(near, 1), torch.cat(rows, 1)


def _merged(best: Tensor, where: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of candidates (B, .), of which equal ones stand in the order of their rows."""
    best, order = best.sort(dim=1, descending=True, stable=True)
    return best[:, :k], where.gather(1, order[:, :k])


def _side_by_side(value: Tensor) -> Tensor:
    """(B, W * K) of every rank's (B, K), in the order of ranks."""
    return torch.cat(global_rows(value).chunk(world_size()), 1)


def _summed(memory_q: Tensor, where: Tensor, counts: Tensor) -> Tensor:
    """(B, C) sums of the rows (B, K) that count."""
    return memory_q[where].to(wide(memory_q.dtype)).masked_fill_(~counts[..., None], 0).sum(1)


def elected(sums: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and weights; of classes that differ by roundings alone the lowest is meant. Such ties are not rare: the
    rows of one batch sum to 1 in every column, so that where all of them vote, all classes are equal."""
    voters = torch.isfinite(best).sum(1, keepdim=True)
    votes = sums / voters.clamp_min(1)
    weights = votes.amax(1)
    near = weights * (1 - TIE * torch.finfo(votes.dtype).eps)
    labels = (votes >= near[:, None]).int().argmax(1)
    return labels.masked_fill(voters[:, 0] == 0, NO_LABEL), weights
