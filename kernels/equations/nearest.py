"""Eqs. (3*) and (3') by themselves: which class is nearest, counted. No gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_constant, check_like, check_pair
from fastget.kernels.launch import empty, launch
from fastget.kernels.logits import launch_logits
from fastget.kernels.tile import PART_MU, merged_best
from fastget.kernels.wrap import Operator


@triton.jit(do_not_specialize=["B", "T"])
def nearest_kernel(
    parts,  # (PARTS, 2, T, B) of the cosines with mu
    others,  # the same, of the cosines with other prototypes; None: every row counts
    out,  # (C,) out
    B, C, T, scale,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[c] = scale * sum_b [argmax_c' cos(f_b, mu_c') = c], over the rows whose nearest among the others is c too."""
    classes = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    count = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        rows = b0 + tl.arange(0, BLOCK_B)
        live = rows < B
        nearest = merged_best(parts, PART_MU, rows, live, B, T, C - 1)
        if others is not None:
            live = live & (nearest == merged_best(others, PART_MU, rows, live, B, T, C - 1))
        count += tl.sum(((nearest[:, None] == classes[None, :]) & live[:, None]).to(tl.float32), 0)
    tl.store(out + classes, scale * count, mask=classes < C)


def _launch(features: Tensor, mu: Tensor, others: Tensor | None, scale: float) -> Tensor:
    parts = launch_logits(features, None, 1.0, mu=mu).parts
    theirs = None if others is None else launch_logits(features, None, 1.0, mu=others).parts
    B, C = features.shape[0], mu.shape[0]
    out, config = empty(features, C), configs.columns(B, C)
    launch(
        nearest_kernel, (triton.cdiv(C, config.BLOCK_C),), parts, theirs, out, B, C, parts.shape[2], scale,
        reads=(parts, theirs), writes=(out,), **vars(config),
    )  # fmt: skip
    return out


def _histogram(features: Tensor, mu: Tensor) -> Tensor:
    return _launch(features, mu, None, 1 / features.shape[0])


def _votes(features: Tensor, mu: Tensor, source_means: Tensor) -> Tensor:
    return _launch(features, mu, source_means, 1.0)


def _fake(features: Tensor, mu: Tensor, source_means: Tensor | None = None) -> Tensor:
    return features.new_empty(mu.shape[:1], dtype=torch.float32)


_histogram_op = Operator("nearest_histogram", _histogram, _fake)
_votes_op = Operator("agreeing_votes", _votes, _fake)


def nearest_histogram(
    features: Tensor,  # (B, D)
    mu: Tensor,  # (C, D)
) -> Tensor:
    """one_hot(cosine(features, mu).argmax(1)).mean(0), the lowest class on a tie: Eq. (3*). (C,)."""
    check_pair(features, mu, "mu")
    check_constant("nearest_histogram", features, mu)
    share: Tensor = _histogram_op(features, mu)
    return share


def agreeing_votes(
    features: Tensor,  # (N, D)
    mu: Tensor,  # (C, D)
    source_means: Tensor,  # (C, D)
) -> Tensor:
    """The rows whose nearest in mu and in source_means is one class, counted by class: Eq. (3'). (C,)."""
    check_pair(features, mu, "mu")
    check_like("source_means", source_means, tuple(mu.shape), features.device)
    check_constant("agreeing_votes", features, mu, source_means)
    votes: Tensor = _votes_op(features, mu, source_means)
    return votes
