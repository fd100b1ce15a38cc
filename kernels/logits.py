"""The cosines of up to three posteriors from one read of the features, and what a softmax needs: Eq. (2)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.launch import interpreting, launch
from fastget.kernels.tile import EPS, first_best, largest, logit, product, to_units

# Slots of `parts`: largest cosine, maximum and sum of exponentials of a head; score and column of a nearest class;
# the estimate's own maximum and sum, or score and column.
SLOT_G, SLOT_F, SLOT_MU, SLOT_ESTIMATE = 0, 3, 6, 8

# What the prior argument holds, and which estimate of Eq. (3) needs partials of its own.
PI, LOG_PRIOR, NO_PRIOR = 0, 1, 2
POSTERIOR, LIKELIHOOD, NEAREST = 0, 1, 2
ESTIMATES = {"posterior": POSTERIOR, "likelihood": LIKELIHOOD, "nearest": NEAREST}


@triton.jit
def shrinkage(prior, C, BN: tl.constexpr):
    """beta = 1 - exp(H(pi)) / C and log sum_c pi_c^beta, of Eq. (2*)."""
    entropy = tl.zeros((BN,), tl.float32)
    for c0 in range(0, C, BN):
        c = c0 + tl.arange(0, BN)
        p = tl.load(prior + c, mask=c < C, other=1.0).to(tl.float32)
        entropy -= tl.where(p > 0, p * tl.log(tl.where(p > 0, p, 1.0)), 0.0)
    beta = 1.0 - tl.exp(tl.sum(entropy, 0)) / C
    powers = tl.zeros((BN,), tl.float32)
    for c0 in range(0, C, BN):
        c = c0 + tl.arange(0, BN)
        p = tl.load(prior + c, mask=c < C, other=1.0).to(tl.float32)
        powers += tl.where(c < C, tl.exp(beta * tl.log(p)), 0.0)
    return beta, tl.log(tl.sum(powers, 0))


@triton.jit
def log_prior_tile(prior, classes, held, C, shrink, PRIOR: tl.constexpr, BN: tl.constexpr):
    """The log prior of one tile of classes: log pi, by Eq. (2*) beta log pi - log sum pi^beta if `shrink`."""
    if PRIOR == 2:
        return tl.zeros((BN,), tl.float32)
    given = tl.load(prior + classes, mask=held, other=1.0).to(tl.float32)
    if PRIOR == 1:
        return given
    log_pi = tl.log(given)
    if shrink != 0:
        beta, log_total = shrinkage(prior, C, BN)
        log_pi = beta * log_pi - log_total
    return log_pi


@triton.jit
def cosine_tile(dots, length, square):
    """dots / (|features| |prototypes|), a vector without length having cosine 0."""
    norm = tl.sqrt(square)
    return dots / length[:, None] / tl.where(norm < EPS, EPS, norm)[None, :]  # a NaN stays one


@triton.jit
def store_softmax_part(parts, slot, scores, rows, live, held, t, T, B):
    """This class tile's row maximum and sum of exponentials."""
    scores = tl.where(held[None, :], scores, float("-inf"))
    top = tl.max(scores, 1)
    total = tl.sum(tl.exp(scores - tl.where(top == float("-inf"), 0.0, top)[:, None]), 1)
    at = parts + tl.cast(slot * T + t, tl.int64) * B + rows
    tl.store(at, top, mask=live)
    tl.store(at + tl.cast(T, tl.int64) * B, total, mask=live)


@triton.jit
def store_best_part(parts, slot, scores, rows, live, classes, held, t, T, B, C):
    """This class tile's row maximum and the lowest column that reaches it."""
    top, column = first_best(scores, classes, held, C - 1)
    at = parts + tl.cast(slot * T + t, tl.int64) * B + rows
    tl.store(at, top, mask=live)
    tl.store(at + tl.cast(T, tl.int64) * B, column.to(tl.float32), mask=live)


@triton.jit(do_not_specialize=["B", "T", "shrink"])
def logits_kernel(
    features,  # (B, D)
    mu, mu_g, mu_f,  # (C, D) each; those that the constexprs leave out are not read
    prior,  # (C,)
    cos_g, cos_f,  # (B, C) int32 out, in units of 2^-29
    scales,  # float64 out: log prior C | |features| B | |mu_g| C | |mu_f| C
    parts,  # (slots, T, B) out
    B, C, D, T, stride_b, stride_d, mu_c, mu_d, g_c, g_d, f_c, f_d,
    inv_tau, shrink,
    MEMORY: tl.constexpr, HEAD_G: tl.constexpr, HEAD_F: tl.constexpr,
    ESTIMATE: tl.constexpr, PRIOR: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, WIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """cos[b,c] = f_b . mu_c / (|f_b| |mu_c|), a zero vector having cosine 0; the logit is log_prior[c] + cos / tau.

    dcos/df_b = (mu_c / |mu_c| - cos f_b / |f_b|) / |f_b|, and with f and mu exchanged: kernels/backward.py.
    What follows needs logits up to a constant of the row only, and takes them as log_prior + (cos - largest cos) / tau:
    1 / tau then magnifies a small difference, and not a cosine near 1 with its rounding. WIDE: sums in float64.
    One program makes one tile of rows and classes for all heads; the norms are summed in the same loop. A row with
    a non-finite feature gets the norm NaN, which is how `bad_rows` is counted later.
    """
    t = tl.program_id(0) % T
    block = tl.program_id(0) // T
    rows = block * BM + tl.arange(0, BM)
    classes = t * BN + tl.arange(0, BN)
    live, held = rows < B, classes < C
    wide_rows, wide_classes = rows.to(tl.int64), classes.to(tl.int64)

    real: tl.constexpr = tl.float64 if WIDE else tl.float32
    dots = tl.zeros((BM, BN), real)
    dots_g = tl.zeros((BM, BN), real)
    dots_f = tl.zeros((BM, BN), real)
    square = tl.zeros((BM,), real)
    poison = tl.zeros((BM,), tl.float32)  # 0, or NaN in a row with a non-finite feature
    square_mu = tl.zeros((BN,), real)
    square_g = tl.zeros((BN,), real)
    square_f = tl.zeros((BN,), real)
    for k0 in range(0, D, BK):
        k = k0 + tl.arange(0, BK)
        wide_k = k.to(tl.int64)
        row_mask = live[:, None] & (k < D)[None, :]
        class_mask = (k < D)[:, None] & held[None, :]
        f = tl.load(features + wide_rows[:, None] * stride_b + wide_k[None, :] * stride_d, mask=row_mask, other=0.0)
        square += tl.sum(f.to(real) * f.to(real), 1)
        poison += tl.sum(f.to(tl.float32) * 0.0, 1)
        if MEMORY:
            m = tl.load(mu + wide_classes[None, :] * mu_c + wide_k[:, None] * mu_d, mask=class_mask, other=0.0)
            square_mu += tl.sum(m.to(real) * m.to(real), 0)
            dots = product(f, m, dots, PRECISION, UPCAST)
        if HEAD_G:
            m = tl.load(mu_g + wide_classes[None, :] * g_c + wide_k[:, None] * g_d, mask=class_mask, other=0.0)
            square_g += tl.sum(m.to(real) * m.to(real), 0)
            dots_g = product(f, m, dots_g, PRECISION, UPCAST)
        if HEAD_F:
            m = tl.load(mu_f + wide_classes[None, :] * f_c + wide_k[:, None] * f_d, mask=class_mask, other=0.0)
            square_f += tl.sum(m.to(real) * m.to(real), 0)
            dots_f = product(f, m, dots_f, PRECISION, UPCAST)

    log_prior = log_prior_tile(prior, classes, held, C, shrink, PRIOR, BN)
    norm = tl.sqrt(square) + poison
    length = tl.where(norm < EPS, EPS, norm)  # a NaN stays one
    if t == 0:
        tl.store(scales + C + wide_rows, norm.to(tl.float64), mask=live)
    if block == 0:
        tl.store(scales + classes, log_prior.to(tl.float64), mask=held)
        after = scales + C + tl.cast(B, tl.int64)
        tl.store(after + classes, tl.sqrt(square_g).to(tl.float64), mask=held)
        tl.store(after + C + classes, tl.sqrt(square_f).to(tl.float64), mask=held)

    allowed = held
    if PRIOR == 1:  # a class that a given log prior rules out is not what the others are measured from
        allowed = held & (log_prior > float("-inf"))
    at = wide_rows[:, None] * C + wide_classes[None, :]
    inside = live[:, None] & held[None, :]
    if MEMORY:
        cos = cosine_tile(dots, length, square_mu)
        store_best_part(parts, 6, log_prior[None, :] + cos * inv_tau, rows, live, classes, held, t, T, B, C)
        if ESTIMATE == 2:
            store_best_part(parts, 8, cos, rows, live, classes, held, t, T, B, C)
    if HEAD_G:
        units = to_units(cosine_tile(dots_g, length, square_g))
        tl.store(cos_g + at, units, mask=inside)
        top = largest(units, allowed[None, :])
        tl.store(parts + tl.cast(t, tl.int64) * B + rows, top, mask=live)
        scaled = logit(units, top[:, None], inv_tau)
        store_softmax_part(parts, 1, log_prior[None, :] + scaled, rows, live, held, t, T, B)
        if ESTIMATE == 1:
            store_softmax_part(parts, 8, scaled, rows, live, held, t, T, B)
    if HEAD_F:
        units = to_units(cosine_tile(dots_f, length, square_f))
        tl.store(cos_f + at, units, mask=inside)
        top = largest(units, allowed[None, :])
        tl.store(parts + tl.cast(3 * T + t, tl.int64) * B + rows, top, mask=live)
        scaled = logit(units, top[:, None], inv_tau)
        store_softmax_part(parts, 4, log_prior[None, :] + scaled, rows, live, held, t, T, B)


class Logits(NamedTuple):
    """What the launch leaves behind; None where a head was not asked for."""

    cos_g: Tensor | None  # (B, C) int32, in units of 2^-29
    cos_f: Tensor | None  # (B, C) int32
    scales: Tensor  # (3C + B,) float64: log prior, norms of the features, of mu_g and of mu_f
    parts: Tensor  # (slots, T, B)
    tiles: int  # T, how many class tiles


def launch_logits(
    features: Tensor,  # (B, D)
    prior: Tensor | None,  # (C,): pi, or its log; None with NO_PRIOR
    tau: float,
    *,
    mu: Tensor | None = None,  # (C, D) each; None: that head is left out
    mu_g: Tensor | None = None,
    mu_f: Tensor | None = None,
    estimate: int = POSTERIOR,
    prior_kind: int = PI,
    shrink: bool = False,  # Eq. (2*), with PI
) -> Logits:
    """cos_g, cos_f = [cosine(features, m) for m in (mu_g, mu_f)], and what softmax or argmax of the logits need."""
    heads = [m for m in (mu, mu_g, mu_f) if m is not None]
    (B, D), C = features.shape, heads[0].shape[0]
    config = configs.logits(B, C, configs.precision(features, *heads))
    tiles = triton.cdiv(C, config.BN)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=features.device)

    cos_g = empty(B, C, dtype=torch.int32) if mu_g is not None else None
    cos_f = empty(B, C, dtype=torch.int32) if mu_f is not None else None
    scales = empty(3 * C + B, dtype=torch.float64)
    parts = empty(SLOT_ESTIMATE if estimate == POSTERIOR else SLOT_ESTIMATE + 2, tiles, B)
    absent = features  # stands for a pointer that the constexprs keep from being read

    def strides(m: Tensor | None) -> tuple[int, int]:
        return (0, 0) if m is None else (m.stride(0), m.stride(1))

    launch(
        logits_kernel,
        (tiles * triton.cdiv(B, config.BM),),
        features,
        *(absent if m is None else m for m in (mu, mu_g, mu_f)),
        absent if prior is None else prior,
        *(scales if cos is None else cos for cos in (cos_g, cos_f)),
        scales,
        parts,
        B, C, D, tiles, *strides(features), *strides(mu), *strides(mu_g), *strides(mu_f),
        1.0 / tau, int(shrink),
        reads=(features, mu, mu_g, mu_f, prior),
        writes=(cos_g, cos_f, scales, parts),
        MEMORY=mu is not None,
        HEAD_G=mu_g is not None,
        HEAD_F=mu_f is not None,
        ESTIMATE=estimate,
        PRIOR=prior_kind,
        PRECISION=config.precision,
        UPCAST=interpreting(),
        WIDE=configs.wide(features, *heads),
        BM=config.BM,
        BN=config.BN,
        BK=config.BK,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )  # fmt: skip
    return Logits(cos_g, cos_f, scales, parts, tiles)
