"""The sums over a batch that many ranks add up: column sums, prior estimate, bad rows, class sums; and y_M."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.launch import interpreting, launch
from fastget.kernels.logits import Logits
from fastget.kernels.tile import add_class_sums, logit, merged_best, merged_softmax

BY_NOTHING, BY_LABELS, BY_Y_M = 0, 1, 2  # which class sums


@triton.jit
def write_labels(parts, y_M, first, B, C, T, BM: tl.constexpr):
    """y_M of one block of rows."""
    rows = first + tl.arange(0, BM)
    live = rows < B
    tl.store(y_M + rows, merged_best(parts, 6, rows, live, B, T, C - 1).to(tl.int64), mask=live)


@triton.jit
def softmax_columns(
    cos, log_prior, parts, top_slot, slot, classes, held, inv_tau, B, C, T, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Column sums of softmax(log_prior + cos / tau), over all rows in order. In float64: where P is flat the slopes
    P - Q are as small as the columns' differences."""
    total = tl.zeros((BC,), tl.float64)
    for b0 in range(0, B, BM):
        rows = b0 + tl.arange(0, BM)
        live = rows < B
        at = cos + rows[:, None].to(tl.int64) * C + classes[None, :]
        inside = live[:, None] & held[None, :]
        units = tl.load(at, mask=inside, other=0)
        top, m, mass = merged_softmax(parts, top_slot, slot, rows, live, B, T, inv_tau)
        logits = log_prior[None, :] + logit(units, top[:, None], inv_tau)
        P = tl.where(inside, tl.exp(logits - m[:, None]) / mass[:, None], 0.0)
        total += tl.sum(P.to(tl.float64), 0)
    return total.to(tl.float32)


@triton.jit
def nearest_columns(parts, classes, B, C, T, BM: tl.constexpr, BC: tl.constexpr):
    """How many rows have each class for their nearest prototype."""
    total = tl.zeros((BC,), tl.float32)
    for b0 in range(0, B, BM):
        rows = b0 + tl.arange(0, BM)
        live = rows < B
        nearest = merged_best(parts, 8, rows, live, B, T, C - 1)
        total += tl.sum(((nearest[:, None] == classes[None, :]) & live[:, None]).to(tl.float32), 0)
    return total


@triton.jit
def write_columns(
    cos_g, cos_f, scales, parts, statistics, block, inv_tau, B, C, T,
    ESTIMATE: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """One block of columns of P_g, of P_f or of the prior's estimate: three programs per block of classes.

    Differs from Eq. (3): it prints the batch mean of cos / tau, which is no distribution; this is that of its softmax.
    """
    kind = block % 3
    classes = block // 3 * BC + tl.arange(0, BC)
    held = classes < C
    log_prior = tl.load(scales + classes, mask=held, other=0.0).to(tl.float32)
    if kind == 0:
        total = softmax_columns(cos_g, log_prior, parts, 0, 1, classes, held, inv_tau, B, C, T, BM, BC)
        tl.store(statistics + classes, total, mask=held)
        if ESTIMATE == 0:
            tl.store(statistics + 2 * C + classes, total, mask=held)
    elif kind == 1:
        total = softmax_columns(cos_f, log_prior, parts, 3, 4, classes, held, inv_tau, B, C, T, BM, BC)
        tl.store(statistics + C + classes, total, mask=held)
    else:
        if ESTIMATE == 1:
            flat = tl.zeros((BC,), tl.float32)
            total = softmax_columns(cos_g, flat, parts, 0, 8, classes, held, inv_tau, B, C, T, BM, BC)
            tl.store(statistics + 2 * C + classes, total, mask=held)
        if ESTIMATE == 2:
            total = nearest_columns(parts, classes, B, C, T, BM, BC)
            tl.store(statistics + 2 * C + classes, total, mask=held)
        if block == 2:
            bad = tl.zeros((BM,), tl.float32)
            for b0 in range(0, B, BM):
                rows = b0 + tl.arange(0, BM)
                norm = tl.load(scales + C + rows.to(tl.int64), mask=rows < B, other=0.0)
                bad += (norm != norm).to(tl.float32)
            tl.store(statistics + 3 * C, tl.cast(B, tl.float32))
            tl.store(statistics + 3 * C + 1, tl.sum(bad, 0))


@triton.jit
def write_class_sums(
    features, labels, parts, counts, sums, block, B, C, D, T, stride_b, stride_d, stride_y,
    BY: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Each class's features summed, and its count: one block of classes and of the width, over all rows in order."""
    blocks = tl.cdiv(D, BD)
    classes = block // blocks * BN + tl.arange(0, BN)
    depth = block % blocks * BD + tl.arange(0, BD)
    held, deep = classes < C, depth < D
    total = tl.zeros((BN, BD), tl.float32)
    count = tl.zeros((BN,), tl.float32)
    for b0 in range(0, B, BK):
        rows = b0 + tl.arange(0, BK)
        live = rows < B
        if BY == 2:
            y = merged_best(parts, 6, rows, live, B, T, C - 1)
        else:
            y = tl.load(labels + rows.to(tl.int64) * stride_y, mask=live, other=-1).to(tl.int32)
        total, count = add_class_sums(
            features, y, rows, live, classes, depth, deep, stride_b, stride_d, total, count, PRECISION, UPCAST
        )
    at = classes[:, None].to(tl.int64) * D + depth[None, :]
    tl.store(sums + at, total, mask=held[:, None] & deep[None, :])
    if block % blocks == 0:
        tl.store(counts + classes, count, mask=held)


@triton.jit(do_not_specialize=["B", "T", "row_programs", "column_programs"])
def statistics_kernel(
    cos_g, cos_f,  # (B, C) int32
    scales,  # log prior C | |features| B | ...
    parts,  # (slots, T, B)
    features,  # (B, D)
    labels,  # (B,) int64
    y_M,  # (B,) int64 out
    statistics,  # out: colsum_g C | colsum_f C | prior_sum C | rows 1 | bad_rows 1 | counts C | sums C * D
    B, C, D, T, stride_b, stride_d, stride_y,
    inv_tau, row_programs, column_programs,
    ESTIMATE: tl.constexpr, BY: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    BR: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """colsum[c] = sum_b P[b,c]; sums[c] = sum_b [y_b = c] f_b; y_M[b] = argmax_c S_mu[b,c]. No gradient.

    Three kinds of programs in one grid, each owner of what it writes, each summing in the order of the rows: no
    atomics, no partial sums in memory, the same bits whatever the order of the programs.
    """
    pid = tl.program_id(0)
    if pid < row_programs:
        write_labels(parts, y_M, pid * BR, B, C, T, BR)
    elif pid < row_programs + column_programs:
        write_columns(cos_g, cos_f, scales, parts, statistics, pid - row_programs, inv_tau, B, C, T, ESTIMATE, BM, BC)
    elif BY > 0:
        counts = statistics + 3 * C + 2
        write_class_sums(
            features, labels, parts, counts, counts + C, pid - row_programs - column_programs,
            B, C, D, T, stride_b, stride_d, stride_y, BY, PRECISION, UPCAST, BN, BD, BK,
        )  # fmt: skip


@triton.jit(do_not_specialize=["B"])
def class_sums_kernel(
    features,  # (B, D)
    labels,  # (B,) int64
    counts,  # (C,) out
    sums,  # (C, D) out
    B, C, D, stride_b, stride_d, stride_y,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """sums[c] = sum_b [y_b = c] f_b and counts[c] = sum_b [y_b = c]. No gradient."""
    write_class_sums(
        features, labels, counts, counts, sums, tl.program_id(0), B, C, D, 0, stride_b, stride_d, stride_y,
        1, PRECISION, UPCAST, BN, BD, BK,
    )  # fmt: skip


def launch_statistics(
    features: Tensor,  # (B, D)
    logits: Logits,
    tau: float,
    estimate: int,
    by: int,  # BY_NOTHING, BY_LABELS or BY_Y_M
    labels: Tensor | None,  # (B,) int64 with BY_LABELS
) -> tuple[Tensor, Tensor]:
    """y_M (B,) int64 and the packed statistics, in one launch."""
    assert logits.cos_g is not None
    assert logits.cos_f is not None
    B, D = features.shape
    C = logits.cos_g.shape[1]
    size = 3 * C + 2 + (C * (D + 1) if by else 0)
    y_M = torch.empty(B, dtype=torch.int64, device=features.device)
    statistics = torch.empty(size, dtype=torch.float32, device=features.device)
    config = configs.class_sums()
    columns = configs.columns(C)
    row_programs, column_programs = triton.cdiv(B, configs.LABEL_ROWS), 3 * triton.cdiv(C, columns.BN)
    sum_programs = triton.cdiv(C, config.BM) * triton.cdiv(D, config.BN) if by else 0
    launch(
        statistics_kernel,
        (row_programs + column_programs + sum_programs,),
        logits.cos_g, logits.cos_f, logits.scales, logits.parts, features, y_M if labels is None else labels,
        y_M, statistics,
        B, C, D, logits.tiles, *features.stride(), 1 if labels is None else labels.stride(0),
        1.0 / tau, row_programs, column_programs,
        reads=(logits.cos_g, logits.cos_f, logits.scales, logits.parts, features if by else None, labels),
        writes=(y_M, statistics),
        ESTIMATE=estimate, BY=by, PRECISION=config.precision, UPCAST=interpreting(),
        BR=configs.LABEL_ROWS, BM=columns.BM, BC=columns.BN, BN=config.BM, BD=config.BN, BK=config.BK,
        num_warps=columns.num_warps,
        num_stages=config.num_stages,
    )  # fmt: skip
    return y_M, statistics


def launch_class_sums(features: Tensor, labels: Tensor, C: int) -> tuple[Tensor, Tensor]:
    """sums (C, D), counts (C,), float32."""
    B, D = features.shape
    sums = torch.empty(C, D, dtype=torch.float32, device=features.device)
    counts = torch.empty(C, dtype=torch.float32, device=features.device)
    config = configs.class_sums()
    launch(
        class_sums_kernel,
        (triton.cdiv(C, config.BM) * triton.cdiv(D, config.BN),),
        features, labels, counts, sums, B, C, D, *features.stride(), labels.stride(0),
        reads=(features, labels),
        writes=(counts, sums),
        PRECISION=config.precision, UPCAST=interpreting(), BN=config.BM, BD=config.BN, BK=config.BK,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )  # fmt: skip
    return sums, counts
