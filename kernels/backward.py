"""The gradient of both heads' losses to features, mu_g and mu_f, in one launch."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.launch import launch
from fastget.kernels.tile import EPS, from_units, inverse_norm, logit


@triton.jit
def column_weight(colsum, classes, held):
    """-0.5 log colsum: what Eq. (6) adds to a logit; -inf for a column of mass zero."""
    mass = tl.load(colsum + classes, mask=held, other=1.0)
    return tl.where(mass > 0, -0.5 * tl.log(tl.where(mass > 0, mass, 1.0)), float("-inf"))


@triton.jit
def column_surplus(colsum, classes, held, unit):
    """v = 1 / sqrt(unit colsum) - 1 without cancellation near unit colsum = 1; -1 for a column of mass zero."""
    mass = tl.load(colsum + classes, mask=held, other=1.0) * unit
    root = tl.sqrt(tl.where(mass > 0, mass, 1.0))
    return tl.where(mass > 0, (1.0 - mass) / (root * (1.0 + root)), -1.0)


@triton.jit
def label_slope(P, Q, surplus, mean, hot, gamma):
    """P - (1 - gamma) Q - gamma onehot(y_M), where `mean` is the row's sum_c P surplus.

    Q = P (1 + surplus) / (1 + mean), so P - Q is a multiple of P: two numbers near each other are not subtracted. Where
    Q is over twice P nothing cancels, and P may have underflowed.
    """
    gap = tl.where(surplus - mean < 1.0 + mean, P * ((mean - surplus) / (1.0 + mean)), P - Q)
    return (1.0 - gamma) * gap + gamma * (P - hot.to(tl.float32))


@triton.jit
def slope_tile(
    cosines, dS, at, inside, log_prior, weight, surplus, hot, best, top, m, total, m_Q, total_Q, slope_best, mean,
    inv_tau, gamma,
    GIVEN: tl.constexpr, REAL: tl.constexpr,
):  # fmt: skip
    """The cosines at `at`, and the loss's slope there: dS as given, or P - (1 - gamma) Q - gamma onehot(y_M),
    which at the row's most likely class was found without cancellation."""
    units = tl.load(cosines + at, mask=inside, other=0)
    if GIVEN:
        slope = tl.load(dS + at, mask=inside, other=0.0)
    else:
        logits = log_prior + logit(units, top, inv_tau)
        P = tl.exp(logits - m) / total
        Q = tl.exp(logits + weight - m_Q) / total_Q
        slope = tl.where(best, slope_best, label_slope(P, Q, surplus, mean, hot, gamma))
        slope = tl.where(inside, slope, 0.0)
    return from_units(units, REAL), slope.to(REAL)


@triton.jit
def add_features_gradient(
    total_d, total_cos, mu, cosines, dS, colsum, y_M, rows_of, scales, norms, rows, live, depth, deep,
    scale, inv_tau, gamma, unit, B, C, mu_c, mu_d,
    GIVEN: tl.constexpr, PRECISION: tl.constexpr, REAL: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One head's part of a tile of d_features: sum_c d[b,c] mu_c / |mu_c|, and sum_c d[b,c] cos[b,c]."""
    if GIVEN:
        y, best, top, m, total, m_Q, total_Q, slope_best, mean = rows, rows, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0
    else:
        y = tl.load(y_M + rows, mask=live, other=0)
        m = tl.load(rows_of + rows, mask=live, other=0.0)[:, None]
        total = tl.load(rows_of + B + rows, mask=live, other=1.0)[:, None]
        m_Q = tl.load(rows_of + 2 * B + rows, mask=live, other=0.0)[:, None]
        total_Q = tl.load(rows_of + 3 * B + rows, mask=live, other=1.0)[:, None]
        best = tl.load(rows_of + 4 * B + rows, mask=live, other=0.0).to(tl.int32)
        slope_best = tl.load(rows_of + 5 * B + rows, mask=live, other=0.0)[:, None]
        top = tl.load(rows_of + 6 * B + rows, mask=live, other=0.0)[:, None]
        mean = tl.load(rows_of + 7 * B + rows, mask=live, other=0.0)[:, None]
    for c0 in range(0, C, BK):
        classes = c0 + tl.arange(0, BK)
        held = classes < C
        inside = live[:, None] & held[None, :]
        at = rows[:, None] * C + classes[None, :]
        weight, surplus = 0.0, 0.0
        if not GIVEN:
            weight = column_weight(colsum, classes, held)[None, :]
            surplus = column_surplus(colsum, classes, held, unit)[None, :]
        hot, likeliest = y[:, None] == classes[None, :], best[:, None] == classes[None, :]
        log_prior = tl.load(scales + classes, mask=held, other=0.0).to(tl.float32)[None, :]
        cos, d = slope_tile(
            cosines, dS, at, inside, log_prior, weight, surplus, hot, likeliest, top, m, total, m_Q, total_Q,
            slope_best, mean, inv_tau, gamma, GIVEN, REAL,
        )  # fmt: skip
        d *= scale
        total_cos += tl.sum(d * cos, 1)
        d *= inverse_norm(tl.load(norms + classes, mask=held, other=1.0).to(REAL))[None, :]
        at_mu = mu + classes[:, None].to(tl.int64) * mu_c + depth[None, :].to(tl.int64) * mu_d
        p = tl.load(at_mu, mask=held[:, None] & deep[None, :], other=0.0).to(REAL)
        total_d = tl.dot(d, p, total_d, input_precision=PRECISION, out_dtype=REAL)
    return total_d, total_cos


@triton.jit
def write_mu_gradient(
    d_mu, features, mu, cosines, dS, colsum, y_M, rows_of, scales, norms, block, scale, inv_tau, gamma, unit,
    B, C, D, stride_b, stride_d, mu_c, mu_d,
    GIVEN: tl.constexpr, PRECISION: tl.constexpr, REAL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One tile of d_mu: (sum_b d[b,c] f_b / |f_b| - sum_b d[b,c] cos[b,c] mu_c / |mu_c|) / |mu_c|."""
    blocks = tl.cdiv(D, BN)
    classes = block // blocks * BM + tl.arange(0, BM)
    depth = block % blocks * BN + tl.arange(0, BN)
    held, deep = classes < C, depth < D
    log_prior = tl.load(scales + classes, mask=held, other=0.0).to(tl.float32)[:, None]
    weight, surplus = 0.0, 0.0
    if not GIVEN:
        weight = column_weight(colsum, classes, held)[:, None]
        surplus = column_surplus(colsum, classes, held, unit)[:, None]
    total_d = tl.zeros((BM, BN), REAL)
    total_cos = tl.zeros((BM,), REAL)
    for b0 in range(0, B, BK):
        rows = (b0 + tl.arange(0, BK)).to(tl.int64)
        live = rows < B
        if GIVEN:
            y, best, top, m, total, m_Q, total_Q, slope_best, mean = rows, rows, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0
        else:
            y = tl.load(y_M + rows, mask=live, other=0)
            m = tl.load(rows_of + rows, mask=live, other=0.0)[None, :]
            total = tl.load(rows_of + B + rows, mask=live, other=1.0)[None, :]
            m_Q = tl.load(rows_of + 2 * B + rows, mask=live, other=0.0)[None, :]
            total_Q = tl.load(rows_of + 3 * B + rows, mask=live, other=1.0)[None, :]
            best = tl.load(rows_of + 4 * B + rows, mask=live, other=0.0).to(tl.int32)
            slope_best = tl.load(rows_of + 5 * B + rows, mask=live, other=0.0)[None, :]
            top = tl.load(rows_of + 6 * B + rows, mask=live, other=0.0)[None, :]
            mean = tl.load(rows_of + 7 * B + rows, mask=live, other=0.0)[None, :]
        inside = held[:, None] & live[None, :]
        at = rows[None, :] * C + classes[:, None]
        hot, likeliest = y[None, :] == classes[:, None], best[None, :] == classes[:, None]
        cos, d = slope_tile(
            cosines, dS, at, inside, log_prior, weight, surplus, hot, likeliest, top, m, total, m_Q, total_Q,
            slope_best, mean, inv_tau, gamma, GIVEN, REAL,
        )  # fmt: skip
        d *= scale
        total_cos += tl.sum(d * cos, 1)
        d *= inverse_norm(tl.load(scales + C + rows, mask=live, other=1.0).to(REAL))[None, :]
        at_f = features + rows[:, None] * stride_b + depth[None, :].to(tl.int64) * stride_d
        f = tl.load(at_f, mask=live[:, None] & deep[None, :], other=0.0).to(REAL)
        total_d = tl.dot(d, f, total_d, input_precision=PRECISION, out_dtype=REAL)

    inside = held[:, None] & deep[None, :]
    norm = tl.load(norms + classes, mask=held, other=1.0).to(REAL)
    inverse = inverse_norm(norm)[:, None]
    at_mu = mu + classes[:, None].to(tl.int64) * mu_c + depth[None, :].to(tl.int64) * mu_d
    p = tl.load(at_mu, mask=inside, other=0.0).to(REAL)
    gradient = tl.where((norm >= EPS)[:, None], (total_d - total_cos[:, None] * p * inverse) * inverse, 0.0)
    at = d_mu + classes[:, None].to(tl.int64) * D + depth[None, :]
    tl.store(at, gradient.to(d_mu.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["B", "feature_programs", "g_programs"])
def backward_kernel(
    features,  # (B, D)
    mu_g, mu_f,  # (C, D)
    cos_g, cos_f,  # (B, C) int32
    dS,  # (B, C) with GIVEN: the slope of head g, its only head
    colsum_g, colsum_f,  # (C,)
    y_M,  # (B,) int64
    row_stats,  # (16, B), as objective_kernel writes them
    scales,  # float64: log prior C | |features| B | |mu_g| C | |mu_f| C
    grad_loss, grad_g, grad_f,  # () incoming gradients
    d_features, d_mu_g, d_mu_f,  # out: (B, D), (C, D), (C, D)
    B, C, D, stride_b, stride_d, g_c, g_d, f_c, f_d,
    inv_tau, gamma_g, gamma_f, unit,
    feature_programs, g_programs,
    USE_G: tl.constexpr, USE_F: tl.constexpr,
    HAS_LOSS: tl.constexpr, HAS_G: tl.constexpr, HAS_F: tl.constexpr, GIVEN: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """loss = (1/B) sum_b (lse(S_b) - y_b . S_b), so dS = (P - y) / B, and with d = grad dS / tau

    d_features_b = (sum_c d mu_c / |mu_c| - sum_c d cos f_b / |f_b|) / |f_b|, both heads added;
    d_mu_c       = (sum_b d f_b / |f_b|   - sum_b d cos mu_c / |mu_c|) / |mu_c|.

    P and Q are made again from the cosines, which costs less than keeping them. Tiles of d_features, d_mu_g and d_mu_f
    stand in one grid; each sums over its whole other axis in order. WIDE: sums in float64, since the two terms cancel
    where prototypes and features point the same way. A vector shorter than 1e-12 gets no gradient.
    """
    pid = tl.program_id(0)
    REAL: tl.constexpr = tl.float64 if WIDE else tl.float32
    scale_g = inv_tau
    scale_f = inv_tau
    if not GIVEN:
        base = 0.0
        if HAS_LOSS:
            base = tl.load(grad_loss)
        scale_g = base
        scale_f = base
        if HAS_G:
            scale_g = base + tl.load(grad_g)
        if HAS_F:
            scale_f = base + tl.load(grad_f)
        scale_g = scale_g * inv_tau / B
        scale_f = scale_f * inv_tau / B
    norm_g = scales + C + tl.cast(B, tl.int64)
    wide_B = tl.cast(B, tl.int64)

    if pid < feature_programs:
        blocks = tl.cdiv(D, BN)
        rows = (pid // blocks * BM + tl.arange(0, BM)).to(tl.int64)
        depth = pid % blocks * BN + tl.arange(0, BN)
        live, deep = rows < B, depth < D
        total_d = tl.zeros((BM, BN), REAL)
        total_cos = tl.zeros((BM,), REAL)
        if USE_G:
            total_d, total_cos = add_features_gradient(
                total_d, total_cos, mu_g, cos_g, dS, colsum_g, y_M, row_stats, scales, norm_g,
                rows, live, depth, deep, scale_g, inv_tau, gamma_g, unit, wide_B, C, g_c, g_d,
                GIVEN, PRECISION, REAL, BK,
            )  # fmt: skip
        if USE_F:
            total_d, total_cos = add_features_gradient(
                total_d, total_cos, mu_f, cos_f, dS, colsum_f, y_M, row_stats + 8 * wide_B, scales, norm_g + C,
                rows, live, depth, deep, scale_f, inv_tau, gamma_f, unit, wide_B, C, f_c, f_d,
                GIVEN, PRECISION, REAL, BK,
            )  # fmt: skip
        inside = live[:, None] & deep[None, :]
        norm = tl.load(scales + C + rows, mask=live, other=1.0).to(REAL)
        inverse = inverse_norm(norm)[:, None]
        at_f = features + rows[:, None] * stride_b + depth[None, :].to(tl.int64) * stride_d
        f = tl.load(at_f, mask=inside, other=0.0).to(REAL)
        gradient = (total_d - total_cos[:, None] * f * inverse) * inverse
        gradient = tl.where((norm < EPS)[:, None], 0.0, gradient)  # a NaN norm keeps its NaN
        at = d_features + rows[:, None] * D + depth[None, :]
        tl.store(at, gradient.to(d_features.dtype.element_ty), mask=inside)
    elif pid < feature_programs + g_programs:
        if USE_G:
            write_mu_gradient(
                d_mu_g, features, mu_g, cos_g, dS, colsum_g, y_M, row_stats, scales, norm_g, pid - feature_programs,
                scale_g, inv_tau, gamma_g, unit, wide_B, C, D, stride_b, stride_d, g_c, g_d,
                GIVEN, PRECISION, REAL, BM, BN, BK,
            )  # fmt: skip
    else:
        if USE_F:
            write_mu_gradient(
                d_mu_f, features, mu_f, cos_f, dS, colsum_f, y_M, row_stats + 8 * wide_B, scales, norm_g + C,
                pid - feature_programs - g_programs,
                scale_f, inv_tau, gamma_f, unit, wide_B, C, D, stride_b, stride_d, f_c, f_d,
                GIVEN, PRECISION, REAL, BM, BN, BK,
            )  # fmt: skip


def column_unit(B: int, C: int) -> float:
    """The power of two nearest to C / B, which brings the column sums near 1 without rounding."""
    return float(2.0 ** round(math.log2(C / B)))


def launch_backward(
    features: Tensor,  # (B, D)
    mu_g: Tensor,  # (C, D)
    mu_f: Tensor | None,  # (C, D); None: one head
    cos_g: Tensor,  # (B, C) int32
    cos_f: Tensor | None,
    scales: Tensor,
    tau: float,
    *,
    needs: tuple[bool, bool, bool],  # which of d_features, d_mu_g, d_mu_f
    dS: Tensor | None = None,  # (B, C): the slope of the only head; else it is made from what follows
    colsums: tuple[Tensor, Tensor] | None = None,
    y_M: Tensor | None = None,
    row_stats: Tensor | None = None,
    gammas: tuple[float, float] = (0.0, 0.0),
    grads: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),  # of loss, loss_g, loss_f
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """torch.autograd.grad of the losses, in one launch; None for what was not asked for or has no path."""
    (B, D), C = features.shape, mu_g.shape[0]
    given = dS is not None
    grad_loss, grad_g, grad_f = grads
    use_g = given or grad_loss is not None or grad_g is not None
    use_f = mu_f is not None and (grad_loss is not None or grad_f is not None)
    need_x, need_g, need_f = needs[0] and (use_g or use_f), needs[1] and use_g, needs[2] and use_f
    d_features = torch.empty(features.shape, dtype=features.dtype, device=features.device) if need_x else None
    d_mu_g = torch.empty(mu_g.shape, dtype=mu_g.dtype, device=mu_g.device) if need_g else None
    d_mu_f = None
    if need_f and mu_f is not None:
        d_mu_f = torch.empty(mu_f.shape, dtype=mu_f.dtype, device=mu_f.device)
    if not (need_x or need_g or need_f):
        return None, None, None
    inputs = [t for t in (features, mu_g, mu_f) if t is not None]
    config, wide = configs.backward(B, configs.precision(*inputs)), configs.wide(*inputs)
    across = triton.cdiv(D, config.BN)
    feature_programs = triton.cdiv(B, config.BM) * across if need_x else 0
    g_programs = triton.cdiv(C, config.BM) * across if need_g else 0
    f_programs = triton.cdiv(C, config.BM) * across if need_f else 0
    colsum_g, colsum_f = colsums or (scales, scales)
    head = mu_g if mu_f is None else mu_f
    absent = scales  # stands for a pointer that the constexprs keep from being read

    def pointer(t: Tensor | None) -> Tensor:
        return absent if t is None else t

    head_g, head_f = (True, use_f) if given else (use_g, use_f)
    launch(
        backward_kernel,
        (feature_programs + g_programs + f_programs,),
        features, mu_g, head, cos_g, pointer(cos_f), pointer(dS),
        colsum_g, colsum_f, pointer(y_M), pointer(row_stats), scales,
        pointer(grad_loss), pointer(grad_g), pointer(grad_f),
        *(like if d is None else d for d, like in ((d_features, features), (d_mu_g, mu_g), (d_mu_f, head))),
        B, C, D, *features.stride(), *mu_g.stride(), *head.stride(),
        1.0 / tau, gammas[0], gammas[1], column_unit(B, C), feature_programs, g_programs,
        reads=(
            features, mu_g if head_g else None, mu_f if head_f else None,
            cos_g if head_g else None, cos_f if head_f else None, dS,
            colsum_g if colsums and head_g else None, colsum_f if colsums and head_f else None,
            y_M, row_stats, scales, grad_loss, grad_g, grad_f,
        ),
        writes=(d_features, d_mu_g, d_mu_f),
        USE_G=head_g, USE_F=head_f,
        HAS_LOSS=grad_loss is not None, HAS_G=grad_g is not None, HAS_F=grad_f is not None, GIVEN=given,
        PRECISION=config.precision, WIDE=wide, BM=config.BM, BN=config.BN, BK=config.BK,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return d_features, d_mu_g, d_mu_f
