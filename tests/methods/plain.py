"""The methods' formulas in loops of Python floats, and slopes by differences: what the tests compare with.

What a formula holds constant is computed at `at`, which is not moved when slopes are taken; at=z for a value.

Shapes: z, p are B rows of C, memories C or N rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Row = list[float]
Rows = list[Row]
# central differences of eighth order: their error is h^8, so that a step will do that does not drown in rounding
STEP = 2.0**-8
WEIGHTS = (4 / 5, -1 / 5, 4 / 105, -1 / 280)


def random(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_equal(found: Tensor, wanted: Rows | Tensor) -> None:
    """To 1e-9, in float64."""
    if not isinstance(wanted, Tensor):
        wanted = torch.tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def slopes(function: Callable[[Rows], float], rows: Rows) -> Tensor:
    """The function's gradient, entry by entry."""

    def slope(b: int, c: int) -> float:
        pairs = [w * (function(moved(rows, b, c, n * STEP)) - function(moved(rows, b, c, -n * STEP)))
                 for n, w in enumerate(WEIGHTS, 1)]  # fmt: skip
        return math.fsum(pairs) / STEP

    found = [[slope(b, c) for c in range(len(row))] for b, row in enumerate(rows)]
    return torch.tensor(found, dtype=torch.float64)


def moved(rows: Rows, b: int, c: int, by: float) -> Rows:
    """A copy in which one entry is another one."""
    copy = [list(row) for row in rows]
    copy[b][c] += by
    return copy


# --- rows ----------------------------------------------------------------------------------------


def log_softmax(row: Row) -> Row:
    top = max(row)
    log_sum = math.log(sum(math.exp(x - top) for x in row))
    return [x - top - log_sum for x in row]


def softmax(row: Row) -> Row:
    return [math.exp(x) for x in log_softmax(row)]


def entropy(row: Row) -> float:
    return -sum(p * math.log(p) for p in softmax(row) if p > 0)


def dot(a: Row, b: Row) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def length(a: Row) -> float:
    return math.sqrt(dot(a, a))


# --- losses of the predictions -------------------------------------------------------------------


def minent(z: Rows) -> float:
    """(1 / B) sum_b H(p_b) / log C."""
    return sum(entropy(row) for row in z) / len(z) / math.log(len(z[0]))


def mme(z: Rows, weight: float) -> float:
    """weight * mean_b sum_c p log p."""
    return weight * sum(-entropy(row) for row in z) / len(z)


def nuclear_norm(matrix: Rows) -> float:
    """The sum of singular values: rows (or columns) are turned, two at a time, until all are orthogonal (one-sided
    Jacobi); then it is the sum of their lengths."""
    a = [list(row) for row in (matrix if len(matrix) < len(matrix[0]) else zip(*matrix, strict=True))]
    for _ in range(30):
        turned = [turn(a, i, j) for i in range(len(a)) for j in range(i)]
        if not any(turned):
            break
    return sum(length(row) for row in a)


def turn(a: Rows, i: int, j: int) -> bool:
    """Make two rows orthogonal by a rotation, in place; whether they were not."""
    across, mine, its = dot(a[i], a[j]), dot(a[i], a[i]), dot(a[j], a[j])
    if abs(across) <= 1e-14 * math.sqrt(mine) * math.sqrt(its):
        return False
    half = (its - mine) / (2 * across)
    tangent = math.copysign(1, half) / (abs(half) + math.hypot(1, half))
    cos = 1 / math.hypot(1, tangent)
    sin = cos * tangent
    both = list(zip(a[i], a[j], strict=True))
    a[i], a[j] = [cos * x - sin * y for x, y in both], [sin * x + cos * y for x, y in both]
    return True


def bnm(z: Rows, norm: str) -> float:
    B, C = len(z), len(z[0])
    scales = {"atdoc": math.sqrt(min(B, C)) / B, "paper": 1 / B, "mean": 1 / min(B, C)}
    return -scales[norm] * nuclear_norm([softmax(row) for row in z])


def mcc(z: Rows, at: Rows, temperature: float) -> float:
    """p = softmax(z / T); v_b = 1 + exp(-H(p_b)), constant, scaled to sum to B; M = P^T diag(v) P;
    1 - (1 / C) sum_c M_cc / sum_c' M_cc', a row's sum at least 1e-12."""
    B, C = len(z), len(z[0])
    P = [softmax([x / temperature for x in row]) for row in z]
    v = [1 + math.exp(-entropy([x / temperature for x in row])) for row in at]
    v = [B * x / sum(v) for x in v]
    M = [[sum(v[b] * P[b][c] * P[b][d] for b in range(B)) for d in range(C)] for c in range(C)]
    return 1 - sum(M[c][c] / max(sum(M[c]), 1e-12) for c in range(C)) / C


# --- labels, and losses of labels ----------------------------------------------------------------


def sharpen_by_column(p: Rows) -> Rows:
    """q_bc = p_bc^2 / sum_b' p_b'c^2; a column of nothing stays so."""
    columns = [sum(row[c] ** 2 for row in p) for c in range(len(p[0]))]
    return [[x**2 / column if column else 0.0 for x, column in zip(row, columns, strict=True)] for row in p]


def weighted_cross_entropy(z: Rows, labels: list[int], weights: Row) -> float:
    """sum_b w_b CE(z_b, y_b) / sum_b w_b; 0 where nothing has a weight."""
    total = sum(-w * log_softmax(row)[y] for row, y, w in zip(z, labels, weights, strict=True) if y >= 0)
    return total / sum(weights) if sum(weights) else 0.0


def pl(z: Rows, at: Rows) -> float:
    """Labels argmax_c q_bc and weights max_c q_bc, constant."""
    q = sharpen_by_column([softmax(row) for row in at])
    return weighted_cross_entropy(z, [row.index(max(row)) for row in q], [max(row) for row in q])


def cdan_entropy(d: Row, z_s: Rows, z: Rows, at_s: Rows, at: Rows) -> float:
    """w_i = 1 + exp(-H(p_i)); v_i = w_i / (sum of w over its domain, constant); sum_i v_i BCE(d_i, 1 for the source,
    0 for the target) / (sum_i v_i, constant)."""

    def weight(row: Row) -> float:
        return 1 + math.exp(-entropy(row))

    sum_s, sum_t = sum(weight(row) for row in at_s), sum(weight(row) for row in at)
    v = [weight(row) / sum_s for row in z_s] + [weight(row) / sum_t for row in z]
    held = [weight(row) / sum_s for row in at_s] + [weight(row) / sum_t for row in at]
    wrong = [-x for x in d[: len(z_s)]] + d[len(z_s) :]  # -log sigmoid(d) of a source row, -log(1 - sigmoid(d))
    return sum(a * (max(x, 0) + math.log1p(math.exp(-abs(x)))) for a, x in zip(v, wrong, strict=True)) / sum(held)


def mixmatch_guess(z1: Rows, z2: Rows, temperature: float) -> Rows:
    """The mean of both views' softmaxes to the power of 1 / temperature, over its row sum."""
    found = []
    for one, two in zip(z1, z2, strict=True):
        raised = [((p + q) / 2) ** (1 / temperature) for p, q in zip(softmax(one), softmax(two), strict=True)]
        found.append([x / sum(raised) for x in raised])
    return found


# --- memories ------------------------------------------------------------------------------------


def nearest_centroid_labels(f: Rows, memory: Rows) -> list[int]:
    """argmax_c f_b . M_c / |M_c|, the lowest on a tie; a centroid of zeros has the product 0."""
    labels = []
    for row in f:
        near = [dot(row, m) / (length(m) or 1.0) for m in memory]
        labels.append(near.index(max(near)))
    return labels


def update_centroids(memory: Rows, f: Rows, labels: list[int], step: float) -> Rows:
    """(1 - step) M_c + step * mean of the features labelled c; a class with none stays."""
    moved = []
    for c, old in enumerate(memory):
        mine = [row for row, y in zip(f, labels, strict=True) if y == c]
        means = [sum(column) / len(mine) for column in zip(*mine, strict=True)]
        moved.append([(1 - step) * m + step * x for m, x in zip(old, means, strict=True)] if mine else old)
    return moved


def vote(f: Row, own: int, memory_f: Rows, memory_q: Rows, k: int) -> Row | None:
    """The mean of Q over the k largest inner products, the image itself and rows never filled left out."""
    near = [(dot(f, row), j) for j, row in enumerate(memory_f) if j != own and any(row)]
    best = [j for _, j in sorted(near, reverse=True)[:k]]
    return [sum(memory_q[j][c] for j in best) / len(best) for c in range(len(memory_q[0]))] if best else None


def neighbour_labels(f: Rows, index: list[int], memory_f: Rows, memory_q: Rows, k: int) -> tuple[list[int], Row]:
    """argmax and max of each row's vote; label -1 and weight 0 where nobody votes."""
    votes = [vote(row, i, memory_f, memory_q, k) for row, i in zip(f, index, strict=True)]
    return [-1 if v is None else v.index(max(v)) for v in votes], [0.0 if v is None else max(v) for v in votes]
