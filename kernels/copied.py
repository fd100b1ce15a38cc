"""Large sizes in bfloat16: copies of the prototypes in the products' type, and the logits made of them, Eq. (2).

Prototypes are float32, and kernels/logits.py rounds them in every tile that multiplies them, by way of registers that
larger tiles have not got. Where all tiles together ask L2 for more than it hands out beside the products, one launch
more pays: it leaves bfloat16 copies and all norms behind, and both sides of a product go to the matrix cores as they
are, here and in kernels/backward.py. Roundings are where kernels/logits.py has them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.launch import empty, launch
from fastget.kernels.logits import Logits, Scales, strides
from fastget.kernels.prior import FADING, PRIOR_FORMS, faded, log_prior_tile
from fastget.kernels.tile import (
    PART_ESTIMATE,
    PART_F,
    PART_G,
    PART_MU,
    PARTS,
    at_least_eps,
    finite_max,
    first_best,
    pair_of,
    product,
    quarters,
    rounded,
)

HEADS = tl.constexpr(3)  # mu, mu_g, mu_f, in this order
PIECES = tl.constexpr(4)  # of a tile's columns, what is made of one after the other needs fewer registers


@triton.jit
def write_vectors(
    vectors, out, norm, block, N, D, stride, stride_d, COPY: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The norms of one block of vectors, and with COPY the vectors in the type of `out`; without, one with a non-finite
    number gets the norm NaN."""
    index = block * BLOCK_C + tl.arange(0, BLOCK_C)
    there = index < N
    square = tl.zeros((BLOCK_C,), tl.float32)
    poison = tl.zeros((BLOCK_C,), tl.float32)
    for k0 in range(0, D, BLOCK_D):
        k = k0 + tl.arange(0, BLOCK_D)
        inside = there[:, None] & (k < D)[None, :]
        at = vectors + index[:, None].to(tl.int64) * stride + k[None, :].to(tl.int64) * stride_d
        wide = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        square += tl.sum(wide * wide, 1)
        if COPY:
            at = out + index[:, None].to(tl.int64) * D + k[None, :]
            tl.store(at, rounded(wide, out.dtype.element_ty), mask=inside)
        else:
            poison += tl.sum(wide * 0.0, 1)
    tl.store(norm + index, tl.sqrt(square) + poison, mask=there)


@triton.jit(do_not_specialize=["B", "form"])
def copies_kernel(
    features,  # (B, D)
    mu, mu_g, mu_f,  # (C, D) each
    prior,  # (C,): pi
    copies,  # (HEADS, C, D) out
    norm, norm_mu, norm_g, norm_f,  # (B,), (C,), (C,), (C,) out
    log_prior,  # (C,) out
    exponent,  # () out: of the column sums, Eq. (6) or (6')
    B, C, D, stride_b, stride_d, mu_c, mu_d, g_c, g_d, f_c, f_d, form,
    PRIOR_C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """copies = stack(mu, mu_g, mu_f) in another type; norm_b = |f_b|, norm_mu = |mu_c| before the rounding, and so on.

    Programs own a block of vectors each, the last ones a block of the prior.
    """
    block = tl.program_id(0)
    rows, blocks = tl.cdiv(B, BLOCK_C), tl.cdiv(C, BLOCK_C)
    one = tl.cast(C, tl.int64) * D
    if block < rows:
        write_vectors(features, copies, norm, block, B, D, stride_b, stride_d, False, BLOCK_C, BLOCK_D)
    elif block < rows + blocks:
        write_vectors(mu, copies, norm_mu, block - rows, C, D, mu_c, mu_d, True, BLOCK_C, BLOCK_D)
    elif block < rows + 2 * blocks:
        block -= rows + blocks
        write_vectors(mu_g, copies + one, norm_g, block, C, D, g_c, g_d, True, BLOCK_C, BLOCK_D)
    elif block < rows + HEADS * blocks:
        block -= rows + 2 * blocks
        write_vectors(mu_f, copies + 2 * one, norm_f, block, C, D, f_c, f_d, True, BLOCK_C, BLOCK_D)
    else:
        block -= rows + HEADS * blocks
        classes = block * PRIOR_C + tl.arange(0, PRIOR_C)
        held = classes < C
        log_pi = log_prior_tile(prior, classes, held, C, form & PRIOR_FORMS, False, PRIOR_C)
        tl.store(log_prior + classes, log_pi, mask=held)
        if block == 0:
            power = tl.full((), 0.5, tl.float32)
            if (form & FADING) != 0:
                power = faded(prior, C, PRIOR_C)
            tl.store(exponent, power)


@triton.jit
def add_best(best, scores, classes, held, last):
    """(maximum, its lowest class) of a row's first parts, and of one more."""
    top, index = best
    here, column = first_best(scores, classes, held[None, :], last)
    return tl.maximum(top, here), tl.where(here > top, column, index)


@triton.jit
def add_softmax(pair, scores, held):
    """(maximum, sum of exponentials) of a row's first parts, and of one more."""
    top, total = pair
    scores = tl.where(held[None, :], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    safe = finite_max(higher)
    return higher, total * tl.exp(top - safe) + tl.sum(tl.exp(scores - safe[:, None]), 1)


@triton.jit
def store_pair(parts, PART: tl.constexpr, pair, rows, live, t, T, B):
    """This class tile's pair of partials."""
    at_first, at_second = pair_of(parts, PART, t, rows, T, B)
    tl.store(at_first, pair[0], mask=live)
    tl.store(at_second, pair[1].to(tl.float32), mask=live)


@triton.jit
def write_labels_part(parts, dots, inverse, norm_mu, log_prior, rows, live, t, T, B, C, inv_tau,
                      ESTIMATE: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """The argmax of one tile under mu; with "nearest" that of the cosines too."""
    best = (tl.full(rows.shape, float("-inf"), tl.float32), tl.full(rows.shape, 0, tl.int32) + (C - 1))
    nearest = best
    pieces = quarters(dots)
    for i in tl.static_range(PIECES):
        classes = t * BLOCK_C + i * (BLOCK_C // PIECES) + tl.arange(0, BLOCK_C // PIECES)
        held = classes < C
        inverse_mu = 1.0 / at_least_eps(tl.load(norm_mu + classes, mask=held, other=1.0))
        log_pi = tl.load(log_prior + classes, mask=held, other=0.0)
        cos = pieces[i] * inverse[:, None] * inverse_mu[None, :]
        best = add_best(best, log_pi[None, :] + cos * inv_tau, classes, held, C - 1)
        if ESTIMATE == "nearest":
            nearest = add_best(nearest, cos, classes, held, C - 1)
    store_pair(parts, PART_MU, best, rows, live, t, T, B)
    if ESTIMATE == "nearest":
        store_pair(parts, PART_ESTIMATE, nearest, rows, live, t, T, B)


@triton.jit
def write_scores(S, parts, PART: tl.constexpr, LIKELIHOOD: tl.constexpr, dots, inverse, norms, log_prior, rows, live,
                 t, T, B, C, inv_tau, BLOCK_C: tl.constexpr):  # fmt: skip
    """One tile of a head's logits, and its part of the softmax; with LIKELIHOOD that of cos / tau too."""
    pair = (tl.full(rows.shape, float("-inf"), tl.float32), tl.zeros(rows.shape, tl.float32))
    without = pair
    pieces = quarters(dots)
    for i in tl.static_range(PIECES):
        classes = t * BLOCK_C + i * (BLOCK_C // PIECES) + tl.arange(0, BLOCK_C // PIECES)
        held = classes < C
        inverse_mu = 1.0 / at_least_eps(tl.load(norms + classes, mask=held, other=1.0))
        log_pi = tl.load(log_prior + classes, mask=held, other=0.0)
        scaled = pieces[i] * inverse[:, None] * (inverse_mu * inv_tau)[None, :]
        scores = log_pi[None, :] + scaled
        at = S + rows[:, None].to(tl.int64) * C + classes[None, :]
        tl.store(at, scores, mask=live[:, None] & held[None, :])
        pair = add_softmax(pair, scores, held)
        if LIKELIHOOD:
            without = add_softmax(without, scaled, held)
    store_pair(parts, PART, pair, rows, live, t, T, B)
    if LIKELIHOOD:
        store_pair(parts, PART_ESTIMATE, without, rows, live, t, T, B)


@triton.jit(do_not_specialize=["B", "T"])
def copied_logits_kernel(
    features,  # (B, D)
    copies,  # (HEADS, C, D)
    norm, norm_mu, norm_g, norm_f,  # (B,), (C,), (C,), (C,)
    log_prior,  # (C,)
    S_g, S_f,  # (B, C) out
    parts,  # (PARTS, 2, T, B) out
    B, eighth, D, T, inv_tau,
    ESTIMATE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """S[b,c] = log_prior[c] + f_b . mu_c / (|f_b| |mu_c| tau), a zero vector having cosine 0.

    One program makes one tile of rows and classes for all heads, as in kernels/logits.py.
    """
    C = eighth * 8  # so that the compiler knows rows of S to begin at 16 bytes
    t = tl.program_id(0) % T
    block = tl.program_id(0) // T
    rows = block * BLOCK_B + tl.arange(0, BLOCK_B)
    classes = t * BLOCK_C + tl.arange(0, BLOCK_C)
    live, held = rows < B, classes < C

    dots = tl.zeros((BLOCK_B, BLOCK_C), tl.float32)
    dots_g = tl.zeros((BLOCK_B, BLOCK_C), tl.float32)
    dots_f = tl.zeros((BLOCK_B, BLOCK_C), tl.float32)
    one = tl.cast(C, tl.int64) * D
    for k0 in range(0, D, BLOCK_D):
        k = k0 + tl.arange(0, BLOCK_D)
        deep = k < D
        at = features + rows[:, None].to(tl.int64) * D + k[None, :]
        f = tl.load(at, mask=live[:, None] & deep[None, :], other=0.0)
        at = copies + classes[None, :].to(tl.int64) * D + k[:, None]
        inside = deep[:, None] & held[None, :]
        dots = product(f, tl.load(at, mask=inside, other=0.0), dots, PRECISION)
        dots_g = product(f, tl.load(at + one, mask=inside, other=0.0), dots_g, PRECISION)
        dots_f = product(f, tl.load(at + 2 * one, mask=inside, other=0.0), dots_f, PRECISION)

    inverse = 1.0 / at_least_eps(tl.load(norm + rows, mask=live, other=1.0))
    write_labels_part(parts, dots, inverse, norm_mu, log_prior, rows, live, t, T, B, C, inv_tau, ESTIMATE, BLOCK_C)
    write_scores(
        S_g, parts, PART_G, ESTIMATE == "likelihood", dots_g, inverse, norm_g, log_prior, rows, live, t, T, B, C,
        inv_tau, BLOCK_C,
    )  # fmt: skip
    write_scores(
        S_f, parts, PART_F, False, dots_f, inverse, norm_f, log_prior, rows, live, t, T, B, C, inv_tau, BLOCK_C
    )


def launch_copied_logits(
    features: Tensor,  # (B, D), contiguous
    prior: Tensor,  # (C,)
    tau: float,
    mu: Tensor,  # (C, D) each
    mu_g: Tensor,
    mu_f: Tensor,
    estimate: str,
    form: int,
) -> Logits:
    """logits.launch_logits() by way of copies, in two launches."""
    (B, D), C = features.shape, mu.shape[0]
    config, width, prior_c = configs.logits(B, C, D, "bf16", True), configs.copying(), configs.prior_block(C)
    copies = torch.empty((HEADS.value, C, D), dtype=torch.bfloat16, device=features.device)
    lengths = [empty(features, n) for n in (B, C, C, C)]  # of features, mu, mu_g, mu_f
    log_prior, exponent = empty(features, C), empty(features)
    blocks = triton.cdiv(B, width.BLOCK_C) + HEADS.value * triton.cdiv(C, width.BLOCK_C) + triton.cdiv(C, prior_c)
    inputs, made = (features, mu, mu_g, mu_f, prior), (copies, *lengths, log_prior, exponent)
    launch(
        copies_kernel, (blocks,), *inputs, *made,
        B, C, D, *strides(features), *strides(mu), *strides(mu_g), *strides(mu_f), form,
        reads=inputs, writes=made, PRIOR_C=prior_c, **vars(width),
    )  # fmt: skip
    tiles = triton.cdiv(C, config.BLOCK_C)
    S_g, S_f = empty(features, B, C), empty(features, B, C)
    parts = empty(features, PARTS - (estimate == "posterior"), 2, tiles, B)
    given, out = (features, copies, *lengths, log_prior), (S_g, S_f, parts)
    launch(
        copied_logits_kernel, (tiles * triton.cdiv(B, config.BLOCK_B),), *given, *out,
        B, C // 8, D, tiles, 1.0 / tau, reads=given, writes=out, ESTIMATE=estimate, **vars(config),
    )  # fmt: skip
    return Logits(S_g, S_f, Scales(log_prior, lengths[0], lengths[2], lengths[3], copies), parts, exponent)


def takes_copies(features: Tensor, *prototypes: Tensor) -> bool:
    """Whether the logits and the gradient of these are made of copies."""
    (B, D), C = features.shape, prototypes[0].shape[0]
    return features.is_contiguous() and configs.copied(B, C, D, configs.precision(features, *prototypes))
