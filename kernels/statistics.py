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
def write_labels(parts, y_M, block, B, C, T, BLOCK_B: tl.constexpr):
    """y_M of one block of rows."""
    rows = block * BLOCK_B + tl.arange(0, BLOCK_B)
    live = rows < B
    tl.store(y_M + rows, merged_best(parts, PART_MU, rows, live, B, T, C - 1).to(tl.int64), mask=live)


@triton.jit
def softmax_columns(
    S, offset, parts, PART: tl.constexpr, classes, held, B, C, T, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Column sums of softmax(S - offset), over all rows in order."""
    total = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        rows = b0 + tl.arange(0, BLOCK_B)
        live = rows < B
        inside = live[:, None] & held[None, :]
        logits = tl.load(S + rows[:, None].to(tl.int64) * C + classes[None, :], mask=inside, other=float("-inf"))
        m, mass = merged_softmax(parts, PART, rows, live, B, T)
        total += tl.sum(tl.exp((logits - offset[None, :]) - m[:, None]) / mass[:, None], 0)
    return total


@triton.jit
def nearest_columns(parts, classes, B, C, T, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr):
    """How many rows have each class for their nearest prototype."""
    total = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        rows = b0 + tl.arange(0, BLOCK_B)
        live = rows < B
        nearest = merged_best(parts, PART_ESTIMATE, rows, live, B, T, C - 1)
        total += tl.sum(((nearest[:, None] == classes[None, :]) & live[:, None]).to(tl.float32), 0)
    return total


@triton.jit
def write_row_counts(norm, row_count, bad_rows, B, BLOCK_B: tl.constexpr):
    """How many rows, and how many of them hold a non-finite feature."""
    bad = tl.zeros((BLOCK_B,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        rows = b0 + tl.arange(0, BLOCK_B)
        length = tl.load(norm + rows, mask=rows < B, other=0.0)
        bad += (length != length).to(tl.float32)
    tl.store(row_count, tl.cast(B, tl.float32))
    tl.store(bad_rows, tl.sum(bad, 0))


@triton.jit
def write_columns(
    S_g, S_f, log_prior, norm, parts, colsum_g, colsum_f, prior_sum, row_count, bad_rows, block, B, C, T,
    ESTIMATE: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One block of columns of P_g, of P_f or of the prior's estimate.

    Differs from Eq. (3): it prints the batch mean of cos / tau, which is no distribution; this is that of its softmax.
    """
    kind = block % KINDS
    classes = block // KINDS * BLOCK_C + tl.arange(0, BLOCK_C)
    held = classes < C
    nothing = tl.zeros((BLOCK_C,), tl.float32)
    if kind == COLUMNS_G:
        total = softmax_columns(S_g, nothing, parts, PART_G, classes, held, B, C, T, BLOCK_B, BLOCK_C)
        tl.store(colsum_g + classes, total, mask=held)
    elif kind == COLUMNS_F:
        total = softmax_columns(S_f, nothing, parts, PART_F, classes, held, B, C, T, BLOCK_B, BLOCK_C)
        tl.store(colsum_f + classes, total, mask=held)
    else:
        if ESTIMATE == "likelihood":
            log_pi = tl.load(log_prior + classes, mask=held, other=0.0)
            total = softmax_columns(S_g, log_pi, parts, PART_ESTIMATE, classes, held, B, C, T, BLOCK_B, BLOCK_C)
            tl.store(prior_sum + classes, total, mask=held)
        if ESTIMATE == "nearest":
            total = nearest_columns(parts, classes, B, C, T, BLOCK_B, BLOCK_C)
            tl.store(prior_sum + classes, total, mask=held)
        if block < KINDS:
            write_row_counts(norm, row_count, bad_rows, B, BLOCK_B)


@triton.jit
def write_class_sums(
    features, labels, parts, counts, sums, block, B, C, D, T, stride_b, stride_d, stride_y,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Each class's features summed, and its count, by the labels, or by y_M where there are none.

    One block of classes and of the width, over all rows in order.
    """
    blocks = tl.cdiv(D, BLOCK_D)
    classes = block // blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    depth = block % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    held, deep = classes < C, depth < D
    total = tl.zeros((BLOCK_C, BLOCK_D), tl.float32)
    count = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        rows = b0 + tl.arange(0, BLOCK_B)
        live = rows < B
        if labels is not None:
            y = tl.load(labels + rows.to(tl.int64) * stride_y, mask=live, other=-1).to(tl.int32)
        else:
            y = merged_best(parts, PART_MU, rows, live, B, T, C - 1)
        total, count = add_class_sums(
            features, y, rows, live, classes, depth, deep, stride_b, stride_d, total, count, PRECISION
        )
    at = classes[:, None].to(tl.int64) * D + depth[None, :]
    tl.store(sums + at, total, mask=held[:, None] & deep[None, :])
    if block % blocks == 0:
        tl.store(counts + classes, count, mask=held)


@triton.jit(do_not_specialize=["B", "T"])
def statistics_kernel(
    S_g, S_f,  # (B, C)
    log_prior,  # (C,)
    norm,  # (B,)
    parts,  # (PARTS, 2, T, B)
    features,  # (B, D)
    labels,  # (B,) int64; None: class sums by y_M
    y_M,  # (B,) int64 out
    colsum_g, colsum_f, prior_sum,  # (C,) out
    row_count, bad_rows,  # () out
    counts, sums,  # (C,), (C, D) out
    B, C, D, T, stride_b, stride_d, stride_y,
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
    if block < label_blocks:
        write_labels(parts, y_M, block, B, C, T, BLOCK_B)
    elif block < label_blocks + column_blocks:
        write_columns(
            S_g, S_f, log_prior, norm, parts, colsum_g, colsum_f, prior_sum, row_count, bad_rows,
            block - label_blocks, B, C, T, ESTIMATE, BLOCK_B, BLOCK_C,
        )  # fmt: skip
    else:
        write_class_sums(
            features, labels, parts, counts, sums, block - label_blocks - column_blocks,
            B, C, D, T, stride_b, stride_d, stride_y, PRECISION, SUMS_B, SUMS_C, SUMS_D,
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
        reads=given, writes=made, ESTIMATE=estimate, PRECISION=tile.PRECISION,
        SUMS_B=tile.BLOCK_B, SUMS_C=tile.BLOCK_C, SUMS_D=tile.BLOCK_D, num_stages=tile.num_stages, **vars(columns),
    )  # fmt: skip
    return y_M, flat
