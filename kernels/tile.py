"""Device functions that several kernels share. They are inlined: none is launched by itself."""

from __future__ import annotations

import triton
import triton.language as tl

EPS = tl.constexpr(1e-12)  # the least norm that a cosine divides by

# Cosines are kept as 32-bit integers, in units of 2^-29: a float32 near 1 is 32 times coarser, and 1 / tau makes its
# rounding as many times larger.
UNITS = tl.constexpr(2.0**29)
BROKEN = tl.constexpr(-(2**31))  # a cosine that is not a number


@triton.jit
def to_units(cos):
    """The nearest number of units, BROKEN for NaN. Rounding in the product may leave a cosine beyond 1; 1.5 never."""
    number = cos == cos
    x = tl.minimum(tl.maximum(tl.where(number, cos, 0.0), -1.5), 1.5) * UNITS
    return tl.where(number, tl.where(x < 0, x - 0.5, x + 0.5).to(tl.int32), BROKEN)


@triton.jit
def from_units(units, REAL: tl.constexpr):
    """The cosine."""
    return tl.where(units == BROKEN, float("nan"), units.to(REAL) * (1.0 / UNITS))


@triton.jit
def largest(units, held):
    """The row's largest cosine, in units that a float32 holds: what `logit` subtracts. Near it, no more is needed."""
    return tl.max(tl.where(held, units, BROKEN), 1).to(tl.float32)


@triton.jit
def logit(units, top, inv_tau):
    """(cos - top) / tau, for the integer `units` and a row's `largest`: exact up to one rounding of the difference."""
    number = units != BROKEN
    base = tl.where(top == BROKEN, 0.0, top).to(tl.int32)  # neither takes part in a difference: it would overflow
    x = (tl.where(number, units, base) - base).to(tl.float32) * (inv_tau * (1.0 / UNITS))
    return tl.where(number, x, float("nan"))


@triton.jit
def row_logits(row, log_priors, classes, held, inside, top, inv_tau):
    """The logits of one tile of rows, `row` pointing to their cosines, less the rows' largest cosine over tau."""
    log_prior = tl.load(log_priors + classes, mask=held, other=0.0).to(tl.float32)
    return log_prior[None, :] + logit(tl.load(row + classes[None, :], mask=inside, other=0), top[:, None], inv_tau)


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """total + a @ b in float32, in float64 if total is. Half types are multiplied as they are when both sides agree."""
    if total.dtype == tl.float64:
        a = a.to(tl.float64)
        b = b.to(tl.float64)
    elif UPCAST or a.dtype != b.dtype:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION, out_dtype=total.dtype)


@triton.jit
def inverse_norm(norm):
    """1 / max(norm, 1e-12)."""
    return 1.0 / tl.maximum(norm, EPS)


@triton.jit
def finite_max(m):
    """m where it is a number, 0 where it is -inf: what an exponent may subtract."""
    return tl.where(m == float("-inf"), 0.0, m)


@triton.jit
def merge(m, total, m_next, total_next):
    """Online softmax: (max, sum of exp(x - max)) of two sets of logits together."""
    top = tl.maximum(m, m_next)
    safe = finite_max(top)
    return top, total * tl.exp(m - safe) + total_next * tl.exp(m_next - safe)


@triton.jit
def first_best(scores, columns, held, last):
    """Row maximum of a tile and the lowest column that reaches it; `last` where nothing compares (NaN)."""
    scores = tl.where(held, scores, float("-inf"))
    top = tl.max(scores, 1)
    return top, tl.min(tl.where((scores == top[:, None]) & held, columns[None, :], last), 1)


@triton.jit
def merged_softmax(parts, top_slot, slot, rows, live, B, T, inv_tau):
    """Largest cosine, row maximum and sum of exponentials from the class tiles' partials, merged in order.

    A tile's maximum (slot) and sum (slot + 1) are of logits less its own largest cosine (top_slot).
    """
    top = tl.full(rows.shape, BROKEN, tl.float32)
    m = tl.full(rows.shape, float("-inf"), tl.float32)
    total = tl.zeros(rows.shape, tl.float32)
    scale = inv_tau * (1.0 / UNITS)
    for t0 in range(0, T, 16):
        t = t0 + tl.arange(0, 16)
        at = parts + (slot * T + t)[:, None].to(tl.int64) * B + rows[None, :]
        inside = (t < T)[:, None] & live[None, :]
        tops = tl.load(at + (top_slot - slot) * tl.cast(T, tl.int64) * B, mask=inside, other=BROKEN)
        higher = tl.maximum(top, tl.max(tops, 0))
        maxima = tl.load(at, mask=inside, other=float("-inf")) + (tops - higher[None, :]) * scale
        totals = tl.load(at + tl.cast(T, tl.int64) * B, mask=inside, other=0.0)
        best = tl.max(maxima, 0)
        totals = tl.sum(totals * tl.exp(maxima - finite_max(best)[None, :]), 0)
        m, total = merge(m + (top - higher) * scale, total, best, totals)
        top = higher
    return top, tl.where(live, finite_max(m), 0.0), tl.where(live, total, 1.0)


@triton.jit
def merged_best(parts, slot, rows, live, B, T, last):
    """Index of the row's maximum from the class tiles' partials (slot, slot + 1), the lowest on a tie."""
    best = tl.full(rows.shape, float("-inf"), tl.float32)
    index = tl.full(rows.shape, 0, tl.int32) + last
    for t0 in range(0, T, 16):
        t = t0 + tl.arange(0, 16)
        at = parts + (slot * T + t)[:, None].to(tl.int64) * B + rows[None, :]
        inside = (t < T)[:, None] & live[None, :]
        scores = tl.load(at, mask=inside, other=float("-inf"))
        columns = tl.load(at + tl.cast(T, tl.int64) * B, mask=inside, other=0.0).to(tl.int32)
        top = tl.max(scores, 0)
        column = tl.min(tl.where((scores == top[None, :]) & inside, columns, last), 0)
        index = tl.where(top > best, column, index)
        best = tl.where(top > best, top, best)
    return index


@triton.jit
def add_class_sums(
    features, y, rows, live, classes, depth, deep, stride_b, stride_d, sums, counts,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """sums + onehot(y)^T @ features and counts + onehot(y)^T 1, for one block of rows.

    A block of rows with no member of these classes is not read: most are skipped when there are many classes.
    """
    member = (y[None, :] == classes[:, None]) & live[None, :]  # (classes, rows)
    here = tl.sum(member.to(tl.int32), 1)
    if tl.sum(here, 0) > 0:
        at = features + rows[:, None].to(tl.int64) * stride_b + depth[None, :].to(tl.int64) * stride_d
        f = tl.load(at, mask=live[:, None] & deep[None, :], other=0.0)
        if UPCAST:
            sums = product(member.to(tl.float32), f, sums, PRECISION, True)
        else:
            sums = product(member.to(f.dtype), f, sums, PRECISION, False)
        counts += here.to(tl.float32)
    return sums, counts
