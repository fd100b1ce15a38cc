"""Device functions that several kernels share. They are inlined: none is launched by itself."""

from __future__ import annotations

import triton
import triton.language as tl

EPS = tl.constexpr(1e-12)  # the least norm that a cosine divides by


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """total + a @ b in float32. Half types are multiplied as they are when both sides agree, else as float32."""
    if UPCAST or a.dtype != b.dtype:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


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
def merged_softmax(parts, slot, rows, live, B, T):
    """Row maximum and sum of exponentials from the class tiles' partials (slot, slot + 1), merged in order."""
    m = tl.full(rows.shape, float("-inf"), tl.float32)
    total = tl.zeros(rows.shape, tl.float32)
    for t0 in range(0, T, 16):
        t = t0 + tl.arange(0, 16)
        at = parts + (slot * T + t)[:, None].to(tl.int64) * B + rows[None, :]
        inside = (t < T)[:, None] & live[None, :]
        tops = tl.load(at, mask=inside, other=float("-inf"))
        totals = tl.load(at + tl.cast(T, tl.int64) * B, mask=inside, other=0.0)
        top = tl.max(tops, 0)
        totals = tl.sum(totals * tl.exp(tops - finite_max(top)[None, :]), 0)
        m, total = merge(m, total, top, totals)
    return tl.where(live, finite_max(m), 0.0), tl.where(live, total, 1.0)


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
