"""Device functions that several kernels share. They are inlined: none is launched by itself.

Names in every kernel: B images in a batch, C classes, D feature width; `offs_b, mask_b` a block's rows and which of
them exist, `offs_c, mask_c` its classes, `offs_d, mask_d` its part of the width, `mask` those of a tile; `x_b, x_c,
x_d` the strides of `x`; `T` tiles of classes, whose partial results `parts` holds. Outer offsets are int64, since a
matrix may have more than 2^31 elements.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastget import reference

EPS = tl.constexpr(reference.EPS)  # the least norm that a cosine divides by
TILES = tl.constexpr(16)  # class tiles whose partials are merged at a time

# What a row's pair of partials is for, the first axis of `parts` (PARTS, 2, T, B). A pair is the maximum and the sum of
# exponentials of a softmax, or the score and the class of an argmax, each over one of T tiles of classes. A class is a
# float32 there, which is exact up to 2^24.
PART_G = tl.constexpr(0)  # softmax of S_g
PART_F = tl.constexpr(1)  # softmax of S_f
PART_MU = tl.constexpr(2)  # argmax of the logits under mu
PART_ESTIMATE = tl.constexpr(3)  # softmax of cos_g / tau, or argmax of the cosines with mu: Eqs. (3), (3*)
PARTS = 4


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """total + a @ b in float32, by PRECISION: "bf16" rounds both sides to it, as autocast does; else half types are
    multiplied as they are when both sides agree, and as float32 when they do not."""
    KIND: tl.constexpr = "ieee" if PRECISION == "bf16" else PRECISION
    if PRECISION == "bf16":
        a = a.to(tl.bfloat16)
        b = b.to(tl.bfloat16)
    elif a.dtype != b.dtype or a.dtype == tl.float32:
        # A card cuts float32 off to TF32: adding half of the last bit that stays rounds to the nearest. Of a NaN the
        # carry might make a zero.
        if PRECISION == "tf32" and a.dtype == tl.float32:
            nearest_a = ((a.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
            a = tl.where(a == a, nearest_a, a)
        if PRECISION == "tf32" and b.dtype == tl.float32:
            nearest_b = ((b.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
            b = tl.where(b == b, nearest_b, b)
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=KIND)


@triton.jit
def at_least_eps(norm):
    """max(norm, 1e-12); a NaN stays one."""
    return tl.where(norm < EPS, EPS, norm)


@triton.jit
def first_best(scores, offs_c, mask_c, last):
    """Row maximum of a tile and the lowest class that reaches it; `last` where nothing compares (NaN)."""
    scores = tl.where(mask_c[None, :], scores, float("-inf"))
    top = tl.max(scores, 1)
    return top, tl.min(tl.where((scores == top[:, None]) & mask_c[None, :], offs_c[None, :], last), 1)


@triton.jit
def merged_softmax(parts, PART: tl.constexpr, offs_b, mask_b, B, T):
    """Row maximum and sum of exponentials over all classes, from the tiles' partials, merged in order."""
    m = tl.full(offs_b.shape, float("-inf"), tl.float32)
    total = tl.zeros(offs_b.shape, tl.float32)
    for t0 in range(0, T, TILES):
        t = t0 + tl.arange(0, TILES)
        at = parts + (T * (2 * PART) + t).to(tl.int64)[:, None] * B + offs_b[None, :]
        mask = (t < T)[:, None] & mask_b[None, :]
        maxima = tl.load(at, mask=mask, other=float("-inf"))
        totals = tl.load(at + tl.cast(T, tl.int64) * B, mask=mask, other=0.0)
        higher = tl.maximum(m, tl.max(maxima, 0))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(m - safe) + tl.sum(totals * tl.exp(maxima - safe[None, :]), 0)
        m = higher
    m = tl.where(mask_b & (m != float("-inf")), m, 0.0)
    return m, tl.where(mask_b, total, 1.0)


@triton.jit
def merged_best(parts, PART: tl.constexpr, offs_b, mask_b, B, T, last):
    """Class of the row's maximum, from the tiles' partials; the lowest on a tie, `last` where nothing compares."""
    best = tl.full(offs_b.shape, float("-inf"), tl.float32)
    index = tl.full(offs_b.shape, 0, tl.int32) + last
    for t0 in range(0, T, TILES):
        t = t0 + tl.arange(0, TILES)
        at = parts + (T * (2 * PART) + t).to(tl.int64)[:, None] * B + offs_b[None, :]
        mask = (t < T)[:, None] & mask_b[None, :]
        scores = tl.load(at, mask=mask, other=float("-inf"))
        classes = tl.load(at + tl.cast(T, tl.int64) * B, mask=mask, other=0.0).to(tl.int32)
        top = tl.max(scores, 0)
        lowest = tl.min(tl.where((scores == top[None, :]) & mask, classes, last), 0)
        index = tl.where(top > best, lowest, index)
        best = tl.where(top > best, top, best)
    return index


@triton.jit
def add_class_sums(
    sums, counts, features, y, offs_b, mask_b, offs_c, offs_d, mask_d, features_b, features_d, PRECISION: tl.constexpr
):
    """sums + onehot(y)^T @ features and counts + onehot(y)^T 1, for one block of rows.

    float32 features are multiplied in full, which is slow: a block of rows with no member of these classes is left out.
    Half types go through the matrix cores, where waiting for the labels would cost more than it saves.
    """
    member = (y[None, :] == offs_c[:, None]) & mask_b[None, :]  # (classes, rows)
    here = tl.sum(member.to(tl.int32), 1)
    at = features + offs_b[:, None].to(tl.int64) * features_b + offs_d[None, :].to(tl.int64) * features_d
    mask = mask_b[:, None] & mask_d[None, :]
    if features.dtype.element_ty == tl.float32:
        if tl.sum(here, 0) > 0:
            sums = tl.dot(member.to(tl.float32), tl.load(at, mask=mask, other=0.0), sums, input_precision=PRECISION)
    else:
        f = tl.load(at, mask=mask, other=0.0)
        sums = tl.dot(member.to(f.dtype), f, sums, input_precision=PRECISION)
    return sums, counts + here.to(tl.float32)


@triton.jit
def store_gradient(out, total, total_cos, vectors, norms, index, mask_i, offs_d, mask_d, vectors_i, vectors_d, D):
    """(total - total_cos v / |v|) / |v|, the gradient to the vectors at `index`; 0 for one shorter than 1e-12."""
    mask = mask_i[:, None] & mask_d[None, :]
    at = vectors + index[:, None].to(tl.int64) * vectors_i + offs_d[None, :].to(tl.int64) * vectors_d
    v = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    norm = tl.load(norms + index, mask=mask_i, other=1.0)[:, None]
    length = at_least_eps(norm)
    gradient = (total - total_cos[:, None] * (v / length)) / length
    gradient = tl.where(norm < EPS, 0.0, gradient)  # a NaN norm keeps its NaN
    tl.store(out + index[:, None].to(tl.int64) * D + offs_d[None, :], gradient, mask=mask)


@triton.jit
def moved_prior(pi, P_bar, gamma_pi, floor):
    """Eq. (3), with all of pi in registers: (1 - gamma_pi) pi + gamma_pi P_bar, its sum 1, then floored."""
    mixed = (1.0 - gamma_pi) * pi + gamma_pi * P_bar
    mixed = mixed / tl.sum(mixed, 0)
    mixed = tl.where(mixed < floor, floor, mixed)  # a NaN stays one
    return tl.where(gamma_pi == 0.0, pi, mixed)
