"""Eq. (3')'s votes: which class is nearest in mu, which in the source's means, and which in both. No gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_like, check_pair
from fastget.kernels.launch import empty, launch
from fastget.kernels.logits import launch_logits
from fastget.kernels.tile import PART_MU, merged_best
from fastget.kernels.wrap import Operator


@triton.jit(do_not_specialize=["B", "T"])
def votes_kernel(
    parts_mu, parts_source,  # (PARTS, 2, T, B) of the cosines with mu, and with the source's means
    votes,  # (3, C) out
    B, C, T,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """votes[0, c] = sum_b [a_b = c], votes[1, c] = sum_b [b_b = c], votes[2, c] = sum_b [a_b = b_b = c]."""
    offs_c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = offs_c < C
    by_mu = tl.zeros((BLOCK_C,), tl.float32)
    by_source = tl.zeros((BLOCK_C,), tl.float32)
    by_both = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        offs_b = b0 + tl.arange(0, BLOCK_B)
        mask_b = offs_b < B
        mu = merged_best(parts_mu, PART_MU, offs_b, mask_b, B, T, C - 1)
        source = merged_best(parts_source, PART_MU, offs_b, mask_b, B, T, C - 1)
        is_mu = (mu[:, None] == offs_c[None, :]) & mask_b[:, None]
        is_source = (source[:, None] == offs_c[None, :]) & mask_b[:, None]
        by_mu += tl.sum(is_mu.to(tl.float32), 0)
        by_source += tl.sum(is_source.to(tl.float32), 0)
        by_both += tl.sum((is_mu & is_source).to(tl.float32), 0)
    tl.store(votes + offs_c, by_mu, mask=mask_c)
    tl.store(votes + C + offs_c, by_source, mask=mask_c)
    tl.store(votes + 2 * C + offs_c, by_both, mask=mask_c)


def _votes(features: Tensor, mu: Tensor, source_means: Tensor) -> Tensor:
    parts_mu, parts_source = (launch_logits(features, None, 1.0, mu=m).parts for m in (mu, source_means))
    B, C = features.shape[0], mu.shape[0]
    votes, config = empty(features, 3, C), configs.columns(B, C)
    launch(
        votes_kernel, (triton.cdiv(C, config.BLOCK_C),), parts_mu, parts_source, votes, B, C, parts_mu.shape[2],
        writes=(votes,), **vars(config),
    )  # fmt: skip
    return votes


def _fake(features: Tensor, mu: Tensor, source_means: Tensor) -> Tensor:
    return features.new_empty((3, mu.shape[0]), dtype=torch.float32)


_votes_op = Operator("agreeing_votes", _votes, _fake)


def agreeing_votes(
    features: Tensor,  # (N, D)
    mu: Tensor,  # (C, D)
    source_means: Tensor,  # (C, D)
) -> Tensor:
    """How many images have class c for the nearest in mu, how many in source_means, how many in both. (3, C)."""
    check_pair(features, mu, "mu")
    check_like("source_means", source_means, tuple(mu.shape), features.device)
    votes: Tensor = _votes_op(features.detach(), mu.detach(), source_means.detach())
    return votes
