"""Device functions that several kernels share. They are inlined: none is launched by itself."""

from __future__ import annotations

import triton
import triton.language as tl

from fastget import reference

EPS = tl.constexpr(reference.EPS)  # the least norm that a cosine divides by
TILES = tl.constexpr(16)  # class tiles whose partials are merged at a time
UPCAST = tl.constexpr(bool(triton.knobs.runtime.interpret))  # the interpreter multiplies bfloat16 wrongly

# What a row's pair of partials is for, the first axis of `parts` (PARTS, 2, T, B). A pair is the maximum and the sum of
# exponentials of a softmax, or the score and the class of an argmax, each over one of T tiles of classes.
PART_G = tl.constexpr(0)  # softmax of S_g
PART_F = tl.constexpr(1)  # softmax of S_f
PART_MU = tl.constexpr(2)  # argmax of the logits under mu
PART_ESTIMATE = tl.constexpr(3)  # softmax of cos_g / tau, or argmax of the cosines with mu: Eqs. (3), (3*)
PARTS = 4

# What a cross-entropy of given labels leaves of each row for its backward, the first axis of (ROW_STATS, B).
ROW_MAX = tl.constexpr(0)  # m = max_c S
ROW_TOTAL = tl.constexpr(1)  # sum_c exp(S - m)
ROW_FACTOR = tl.constexpr(2)  # the labels' sum
ROW_BEST = tl.constexpr(3)  # the likeliest class
ROW_SLOPE = tl.constexpr(4)  # the loss's slope there
ROW_STATS = 5


@triton.jit
def tf32(x):
    """x rounded to the nearest TF32, ties away from zero. tl.dot hands float32 on, and the card cuts it off."""
    bits = x.to(tl.int32, bitcast=True)
    nearest = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(x == x, nearest, x)  # the carry would turn some NaN into zero


@triton.jit
def bf16(x):
    """x rounded to the nearest bfloat16, ties to even; in float32 where the interpreter, which cuts it off, runs."""
    if UPCAST and x.dtype == tl.float32:
        bits = x.to(tl.int32, bitcast=True)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
        x = tl.where(x == x, nearest, x)
    else:
        x = x.to(tl.bfloat16)
    return x


@triton.jit
def rounded(x, KIND: tl.constexpr):
    """float32 x in the type that it is stored in."""
    if KIND == tl.bfloat16:  # noqa: SIM300  (a dtype does not know a constexpr)
        x = bf16(x)
    return x.to(KIND)


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """total + a @ b in float32, by PRECISION: "bf16" rounds both sides to it, as autocast does; else half types are
    multiplied as they are when both sides agree, and as float32 when they do not."""
    if PRECISION == "bf16":
        a = bf16(a)
        b = bf16(b)
    if UPCAST or a.dtype != b.dtype or a.dtype == tl.float32:
        if PRECISION == "tf32" and a.dtype == tl.float32:
            a = tf32(a)
        if PRECISION == "tf32" and b.dtype == tl.float32:
            b = tf32(b)
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee" if PRECISION == "bf16" else PRECISION)


@triton.jit
def halves(x):
    """The left and the right half of a tile's columns."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def quarters(x):
    """The columns of a tile in four parts, in order."""
    left, right = halves(x)
    a, b = halves(left)
    c, d = halves(right)
    return a, b, c, d


@triton.jit
def at_least_eps(norm):
    """max(norm, 1e-12); a NaN stays one."""
    return tl.where(norm < EPS, EPS, norm)


@triton.jit
def inverse_root(colsum, classes, held):
    """1 / sqrt(colsum), 0 for a column of mass zero; a NaN stays one. Eq. (6)."""
    mass = tl.load(colsum + classes, mask=held, other=0.0).to(tl.float32)
    empty = mass <= 0
    return tl.where(empty, 0.0, 1.0 / tl.sqrt(tl.where(empty, 1.0, mass)))


@triton.jit
def inverse_power(colsum, classes, held, power):
    """1 / colsum^power, as Eq. (6') has it; the root where that is 1/2."""
    root = inverse_root(colsum, classes, held)
    if power != 0.5:
        root = tl.where(root == 0.0, 0.0, tl.exp(2.0 * power * tl.log(tl.where(root == 0.0, 1.0, root))))
    return root


@triton.jit
def finite_max(m):
    """m where it is a number, 0 where it is -inf: what an exponent may subtract."""
    return tl.where(m == float("-inf"), 0.0, m)


@triton.jit
def first_best(scores, columns, held, last):
    """Row maximum of a tile and the lowest column that reaches it; `last` where nothing compares (NaN)."""
    scores = tl.where(held, scores, float("-inf"))
    top = tl.max(scores, 1)
    return top, tl.min(tl.where((scores == top[:, None]) & held, columns[None, :], last), 1)


@triton.jit
def pair_of(parts, PART: tl.constexpr, t, rows, T, B):
    """Pointers to the two halves of a pair of partials: of tile(s) `t` and `rows`."""
    first = parts + (T * (2 * PART) + t).to(tl.int64) * B + rows
    return first, first + tl.cast(T, tl.int64) * B


@triton.jit
def merged_softmax(parts, PART: tl.constexpr, rows, live, B, T):
    """Row maximum and sum of exponentials over all classes, from the tiles' partials, merged in order."""
    m = tl.full(rows.shape, float("-inf"), tl.float32)
    total = tl.zeros(rows.shape, tl.float32)
    for t0 in range(0, T, TILES):
        t = t0 + tl.arange(0, TILES)
        at_maxima, at_totals = pair_of(parts, PART, t[:, None], rows[None, :], T, B)
        inside = (t < T)[:, None] & live[None, :]
        maxima = tl.load(at_maxima, mask=inside, other=float("-inf"))
        totals = tl.load(at_totals, mask=inside, other=0.0)
        higher = tl.maximum(m, tl.max(maxima, 0))
        safe = finite_max(higher)
        total = total * tl.exp(m - safe) + tl.sum(totals * tl.exp(maxima - safe[None, :]), 0)
        m = higher
    return tl.where(live, finite_max(m), 0.0), tl.where(live, total, 1.0)


@triton.jit
def merged_best(parts, PART: tl.constexpr, rows, live, B, T, last):
    """Class of the row's maximum, from the tiles' partials; the lowest on a tie, `last` where nothing compares."""
    best = tl.full(rows.shape, float("-inf"), tl.float32)
    index = tl.full(rows.shape, 0, tl.int32) + last
    for t0 in range(0, T, TILES):
        t = t0 + tl.arange(0, TILES)
        at_scores, at_classes = pair_of(parts, PART, t[:, None], rows[None, :], T, B)
        inside = (t < T)[:, None] & live[None, :]
        scores = tl.load(at_scores, mask=inside, other=float("-inf"))
        classes = tl.load(at_classes, mask=inside, other=0.0).to(tl.int32)
        top = tl.max(scores, 0)
        lowest = tl.min(tl.where((scores == top[None, :]) & inside, classes, last), 0)
        index = tl.where(top > best, lowest, index)
        best = tl.where(top > best, top, best)
    return index


@triton.jit
def store_row(row_stats, rows, live, B, m, total, factor, best, slope):
    """The row statistics of one block of rows."""
    B = tl.cast(B, tl.int64)
    tl.store(row_stats + B * ROW_MAX + rows, m, mask=live)
    tl.store(row_stats + B * ROW_TOTAL + rows, total, mask=live)
    tl.store(row_stats + B * ROW_FACTOR + rows, factor, mask=live)
    tl.store(row_stats + B * ROW_BEST + rows, best.to(tl.float32), mask=live)
    tl.store(row_stats + B * ROW_SLOPE + rows, slope, mask=live)


@triton.jit
def load_row(row_stats, rows, live, B):
    """What store_row() left, each as a column of a (rows, classes) tile: m, total, factor, best, slope."""
    B = tl.cast(B, tl.int64)
    m = tl.load(row_stats + B * ROW_MAX + rows, mask=live, other=0.0)
    total = tl.load(row_stats + B * ROW_TOTAL + rows, mask=live, other=1.0)
    factor = tl.load(row_stats + B * ROW_FACTOR + rows, mask=live, other=0.0)
    best = tl.load(row_stats + B * ROW_BEST + rows, mask=live, other=-1.0).to(tl.int32)
    slope = tl.load(row_stats + B * ROW_SLOPE + rows, mask=live, other=0.0)
    return m[:, None], total[:, None], factor[:, None], best[:, None], slope[:, None]


@triton.jit
def cosine_of(logits, log_prior, tau):
    """The cosine that a logit was made of; 0 where the prior rules the class out."""
    return tl.where(logits == float("-inf"), 0.0, (logits - log_prior) * tau)


@triton.jit
def vector_tile(vectors, index, there, depth, deep):
    """A tile of the vectors at `index`, in their own type, 0 outside."""
    v, _, stride, stride_d = vectors
    at = v + index[:, None].to(tl.int64) * stride + depth[None, :].to(tl.int64) * stride_d
    return tl.load(at, mask=there[:, None] & deep[None, :], other=0.0)


@triton.jit
def store_gradient(out, total, total_cos, vectors, index, there, depth, deep, D):
    """(total - total_cos v / |v|) / |v|, the gradient to the vectors at `index`; 0 for one shorter than 1e-12."""
    _, norms, _, _ = vectors
    norm = tl.load(norms + index, mask=there, other=1.0)[:, None]
    length = at_least_eps(norm)
    tile = vector_tile(vectors, index, there, depth, deep).to(tl.float32)
    gradient = (total - total_cos[:, None] * (tile / length)) / length
    gradient = tl.where(norm < EPS, 0.0, gradient)  # a NaN norm keeps its NaN
    at = out + index[:, None].to(tl.int64) * D + depth[None, :]
    tl.store(at, gradient.to(out.dtype.element_ty), mask=there[:, None] & deep[None, :])


@triton.jit
def add_class_sums(
    features, y, rows, live, classes, depth, deep, stride_b, stride_d, sums, counts, PRECISION: tl.constexpr
):
    """sums + onehot(y)^T @ features and counts + onehot(y)^T 1, for one block of rows.

    float32 features are multiplied in full, which is slow: a block of rows with no member of these classes is left out.
    Half types go through the matrix cores, where waiting for the labels would cost more than it saves.
    """
    member = (y[None, :] == classes[:, None]) & live[None, :]  # (classes, rows)
    here = tl.sum(member.to(tl.int32), 1)
    at = features + rows[:, None].to(tl.int64) * stride_b + depth[None, :].to(tl.int64) * stride_d
    if features.dtype.element_ty == tl.float32:
        if tl.sum(here, 0) > 0:
            f = tl.load(at, mask=live[:, None] & deep[None, :], other=0.0)
            sums = product(member.to(tl.float32), f, sums, PRECISION)
    else:
        f = tl.load(at, mask=live[:, None] & deep[None, :], other=0.0)
        KIND: tl.constexpr = tl.float32 if UPCAST else f.dtype
        sums = product(member.to(KIND), f, sums, PRECISION)
    return sums, counts + here.to(tl.float32)
