"""The sums over a batch that many ranks add up: column sums, prior estimate, bad rows, class sums; and y_M."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.launch import empty, launch
from fastget.kernels.logits import Logits
from fastget.kernels.tile import (
    PART_ESTIMATE,
    PART_F,
    PART_G,
    PART_MU,
    add_class_sums,
    merged_best,
    merged_softmax,
)
from fastget.reference import views

# The programs of one block of classes, each with one kind of column.
COLUMNS_G = tl.constexpr(0)
COLUMNS_F = tl.constexpr(1)
KINDS = tl.constexpr(3)


@triton.jit
def softmax_columns(
    S, offset, parts, PART: tl.constexpr, offs_c, mask_c, B, C, T, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Column sums of softmax(S - offset), over all rows in order."""
    total = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        offs_b = b0 + tl.arange(0, BLOCK_B)
        mask_b = offs_b < B
        at, mask = S + offs_b[:, None].to(tl.int64) * C + offs_c[None, :], mask_b[:, None] & mask_c[None, :]
        logits = tl.load(at, mask=mask, other=float("-inf"))
        m, mass = merged_softmax(parts, PART, offs_b, mask_b, B, T)
        total += tl.sum(tl.exp((logits - offset[None, :]) - m[:, None]) / mass[:, None], 0)
    return total


@triton.jit
def nearest_columns(parts, offs_c, B, C, T, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr):
    """How many rows have each class for their nearest prototype."""
    total = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        offs_b = b0 + tl.arange(0, BLOCK_B)
        mask_b = offs_b < B
        nearest = merged_best(parts, PART_ESTIMATE, offs_b, mask_b, B, T, C - 1)
        total += tl.sum(((nearest[:, None] == offs_c[None, :]) & mask_b[:, None]).to(tl.float32), 0)
    return total


@triton.jit
def write_class_sums(
    features, labels, parts, counts, sums, block, B, C, D, T, features_b, features_d, labels_b,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Each class's features summed, and its count: one block of classes and of the width, over all rows in order."""
    tiles_d = tl.cdiv(D, BLOCK_D)
    offs_c = block // tiles_d * BLOCK_C + tl.arange(0, BLOCK_C)
    offs_d = block % tiles_d * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_c, mask_d = offs_c < C, offs_d < D
    total = tl.zeros((BLOCK_C, BLOCK_D), tl.float32)
    count = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        offs_b = b0 + tl.arange(0, BLOCK_B)
        mask_b = offs_b < B
        if labels is not None:
            y = tl.load(labels + offs_b.to(tl.int64) * labels_b, mask=mask_b, other=-1).to(tl.int32)
        else:
            y = merged_best(parts, PART_MU, offs_b, mask_b, B, T, C - 1)
        total, count = add_class_sums(
            total, count, features, y, offs_b, mask_b, offs_c, offs_d, mask_d, features_b, features_d, PRECISION
        )
    at = offs_c[:, None].to(tl.int64) * D + offs_d[None, :]
    tl.store(sums + at, total, mask=mask_c[:, None] & mask_d[None, :])
    if block % tiles_d == 0:
        tl.store(counts + offs_c, count, mask=mask_c)


@triton.jit(do_not_specialize=["B", "T"])
def statistics_kernel(
    S_g, S_f,  # (B, C)
    log_prior,  # (C,)
    norm,  # (B,); NaN in a row with a non-finite feature
    parts,  # (PARTS, 2, T, B)
    features,  # (B, D)
    labels,  # (B,) int64; None: class sums by y_M
    y_M,  # (B,) int64 out
    colsum_g, colsum_f, prior_sum,  # (C,) out
    row_count, bad_rows,  # () out
    counts, sums,  # (C,), (C, D) out
    B, C, D, T, features_b, features_d, labels_b,
    ESTIMATE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
    SUMS_B: tl.constexpr, SUMS_C: tl.constexpr, SUMS_D: tl.constexpr,
):  # fmt: skip
    """colsum[c] = sum_b P[b,c]; sums[c] = sum_b [y_b = c] f_b; y_M[b] = argmax_c S_mu[b,c]. No gradient.

    Three kinds of programs in one grid, each owner of what it writes, each summing in the order of the rows: no
    atomics, no partial sums in memory, the same bits whatever the order of the programs.
    """
    block = tl.program_id(0)
    label_blocks = tl.cdiv(B, BLOCK_B)
    column_blocks = tl.cdiv(C, BLOCK_C) * KINDS

    if block < label_blocks:  # y_M of one block of rows
        offs_b = block * BLOCK_B + tl.arange(0, BLOCK_B)
        mask_b = offs_b < B
        tl.store(y_M + offs_b, merged_best(parts, PART_MU, offs_b, mask_b, B, T, C - 1).to(tl.int64), mask=mask_b)

    elif block < label_blocks + column_blocks:  # one block of columns of P_g, of P_f or of the prior's estimate
        kind = (block - label_blocks) % KINDS
        offs_c = (block - label_blocks) // KINDS * BLOCK_C + tl.arange(0, BLOCK_C)
        mask_c = offs_c < C
        nothing = tl.zeros((BLOCK_C,), tl.float32)
        if kind == COLUMNS_G:
            total = softmax_columns(S_g, nothing, parts, PART_G, offs_c, mask_c, B, C, T, BLOCK_B, BLOCK_C)
            tl.store(colsum_g + offs_c, total, mask=mask_c)
        elif kind == COLUMNS_F:
            total = softmax_columns(S_f, nothing, parts, PART_F, offs_c, mask_c, B, C, T, BLOCK_B, BLOCK_C)
            tl.store(colsum_f + offs_c, total, mask=mask_c)
        else:
            if ESTIMATE == "likelihood":
                log_pi = tl.load(log_prior + offs_c, mask=mask_c, other=0.0)
                total = softmax_columns(S_g, log_pi, parts, PART_ESTIMATE, offs_c, mask_c, B, C, T, BLOCK_B, BLOCK_C)
                tl.store(prior_sum + offs_c, total, mask=mask_c)
            if ESTIMATE == "nearest":
                total = nearest_columns(parts, offs_c, B, C, T, BLOCK_B, BLOCK_C)
                tl.store(prior_sum + offs_c, total, mask=mask_c)
            if block < label_blocks + KINDS:  # how many rows, and how many of them hold a non-finite feature
                bad = tl.zeros((BLOCK_B,), tl.float32)
                for b0 in range(0, B, BLOCK_B):
                    offs_b = b0 + tl.arange(0, BLOCK_B)
                    length = tl.load(norm + offs_b, mask=offs_b < B, other=0.0)
                    bad += (length != length).to(tl.float32)
                tl.store(row_count, tl.cast(B, tl.float32))
                tl.store(bad_rows, tl.sum(bad, 0))

    else:
        write_class_sums(
            features, labels, parts, counts, sums, block - label_blocks - column_blocks,
            B, C, D, T, features_b, features_d, labels_b, PRECISION, SUMS_B, SUMS_C, SUMS_D,
        )  # fmt: skip


def launch_statistics(
    features: Tensor,  # (B, D)
    logits: Logits,
    log_prior: Tensor,  # (C,)
    estimate: str,  # "likelihood" or "nearest"
    labels: Tensor | None,  # (B,) int64: class sums by these; None: by y_M
) -> tuple[Tensor, Tensor]:
    """y_M (B,) int64 and the flat statistics, in one launch."""
    (B, D), C = features.shape, len(log_prior)
    y_M = torch.empty(B, dtype=torch.int64, device=features.device)
    flat = empty(features, 4 * C + 2 + C * D)
    tile, columns = configs.class_sums(B, C, D, features.dtype), configs.columns(B, C)
    programs = triton.cdiv(B, columns.BLOCK_B) + KINDS.value * triton.cdiv(C, columns.BLOCK_C)
    programs += triton.cdiv(C, tile.BLOCK_C) * triton.cdiv(D, tile.BLOCK_D)
    offset = log_prior if estimate == "likelihood" else None
    given = (logits.S_g, logits.S_f, offset, logits.norm, logits.parts, features, labels)
    made = (y_M, *views(flat, C))
    launch(
        statistics_kernel, (programs,), *given, *made,
        B, C, D, logits.parts.shape[2], *features.stride(), 0 if labels is None else labels.stride(0),
        writes=made, ESTIMATE=estimate, PRECISION=tile.PRECISION,
        SUMS_B=tile.BLOCK_B, SUMS_C=tile.BLOCK_C, SUMS_D=tile.BLOCK_D, num_stages=tile.num_stages, **vars(columns),
    )  # fmt: skip
    return y_M, flat
