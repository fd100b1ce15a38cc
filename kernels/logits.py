"""The logits of up to three posteriors from one read of the features, and what a softmax needs: Eq. (2)."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.launch import empty, launch
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
)


@triton.jit
def add_products(dots, square, f, mu, classes, held, k, deep, mu_c, mu_d, PRECISION: tl.constexpr):
    """dots + f . mu_c and square + mu_c . mu_c, over one block of the width."""
    at = mu + classes[None, :].to(tl.int64) * mu_c + k[:, None].to(tl.int64) * mu_d
    m = tl.load(at, mask=deep[:, None] & held[None, :], other=0.0)
    wide = m.to(tl.float32)
    return product(f, m, dots, PRECISION), square + tl.sum(wide * wide, 0)


@triton.jit
def store_softmax_part(parts, PART: tl.constexpr, scores, rows, live, held, t, T, B):
    """This class tile's row maximum and sum of exponentials."""
    scores = tl.where(held[None, :], scores, float("-inf"))
    top = tl.max(scores, 1)
    total = tl.sum(tl.exp(scores - finite_max(top)[:, None]), 1)
    at_top, at_total = pair_of(parts, PART, t, rows, T, B)
    tl.store(at_top, top, mask=live)
    tl.store(at_total, total, mask=live)


@triton.jit
def store_best_part(parts, PART: tl.constexpr, scores, rows, live, classes, held, t, T, B, C):
    """This class tile's row maximum and the lowest class that reaches it."""
    top, best = first_best(scores, classes, held[None, :], C - 1)
    at_top, at_best = pair_of(parts, PART, t, rows, T, B)
    tl.store(at_top, top, mask=live)
    tl.store(at_best, best.to(tl.float32), mask=live)


@triton.jit(do_not_specialize=["B", "T"])
def logits_kernel(
    features,  # (B, D)
    mu, mu_g, mu_f,  # (C, D) each; None: that head is left out
    log_prior,  # (C,); None: none
    S_g, S_f,  # (B, C) out
    norm, norm_g, norm_f,  # (B,), (C,), (C,) out: of features, mu_g, mu_f
    parts,  # (PARTS, 2, T, B) out
    B, C, D, T, stride_b, stride_d, mu_c, mu_d, g_c, g_d, f_c, f_d, inv_tau,
    ESTIMATE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """S[b,c] = log_prior[c] + f_b . mu_c / (|f_b| |mu_c| tau), a zero vector having cosine 0.

    dS/df_b = (mu_c / |mu_c| - cos f_b / |f_b|) / (|f_b| tau), and with f and mu exchanged: kernels/backward.py.
    One program makes one tile of rows and classes for all heads; the norms are summed in the same loop. A row with
    a non-finite feature gets the norm NaN, which is how `bad_rows` is counted later.
    """
    t = tl.program_id(0) % T
    block = tl.program_id(0) // T
    rows = block * BLOCK_B + tl.arange(0, BLOCK_B)
    classes = t * BLOCK_C + tl.arange(0, BLOCK_C)
    live, held = rows < B, classes < C

    dots = tl.zeros((BLOCK_B, BLOCK_C), tl.float32)
    dots_g = tl.zeros((BLOCK_B, BLOCK_C), tl.float32)
    dots_f = tl.zeros((BLOCK_B, BLOCK_C), tl.float32)
    square = tl.zeros((BLOCK_B,), tl.float32)
    poison = tl.zeros((BLOCK_B,), tl.float32)  # 0, or NaN in a row with a non-finite feature
    square_mu = tl.zeros((BLOCK_C,), tl.float32)
    square_g = tl.zeros((BLOCK_C,), tl.float32)
    square_f = tl.zeros((BLOCK_C,), tl.float32)
    for k0 in range(0, D, BLOCK_D):
        k = k0 + tl.arange(0, BLOCK_D)
        deep = k < D
        at = features + rows[:, None].to(tl.int64) * stride_b + k[None, :].to(tl.int64) * stride_d
        f = tl.load(at, mask=live[:, None] & deep[None, :], other=0.0)
        wide = f.to(tl.float32)
        square += tl.sum(wide * wide, 1)
        poison += tl.sum(wide * 0.0, 1)
        if mu is not None:
            dots, square_mu = add_products(dots, square_mu, f, mu, classes, held, k, deep, mu_c, mu_d, PRECISION)
        if mu_g is not None:
            dots_g, square_g = add_products(dots_g, square_g, f, mu_g, classes, held, k, deep, g_c, g_d, PRECISION)
        if mu_f is not None:
            dots_f, square_f = add_products(dots_f, square_f, f, mu_f, classes, held, k, deep, f_c, f_d, PRECISION)

    log_pi = tl.zeros((BLOCK_C,), tl.float32)
    if log_prior is not None:
        log_pi = tl.load(log_prior + classes, mask=held, other=0.0).to(tl.float32)
    length = tl.sqrt(square) + poison
    if t == 0:
        tl.store(norm + rows, length, mask=live)
    length = at_least_eps(length)[:, None]
    at = rows[:, None].to(tl.int64) * C + classes[None, :]
    inside = live[:, None] & held[None, :]
    if mu is not None:
        cos = dots / (length * at_least_eps(tl.sqrt(square_mu))[None, :])
        scores = log_pi[None, :] + cos * inv_tau
        store_best_part(parts, PART_MU, scores, rows, live, classes, held, t, T, B, C)
        if ESTIMATE == "nearest":
            store_best_part(parts, PART_ESTIMATE, cos, rows, live, classes, held, t, T, B, C)
    if mu_g is not None:
        length_g = tl.sqrt(square_g)
        if block == 0:
            tl.store(norm_g + classes, length_g, mask=held)
        scaled = dots_g / (length * at_least_eps(length_g)[None, :]) * inv_tau
        tl.store(S_g + at, log_pi[None, :] + scaled, mask=inside)
        store_softmax_part(parts, PART_G, log_pi[None, :] + scaled, rows, live, held, t, T, B)
        if ESTIMATE == "likelihood":
            store_softmax_part(parts, PART_ESTIMATE, scaled, rows, live, held, t, T, B)
    if mu_f is not None:
        length_f = tl.sqrt(square_f)
        if block == 0:
            tl.store(norm_f + classes, length_f, mask=held)
        scaled = dots_f / (length * at_least_eps(length_f)[None, :]) * inv_tau
        tl.store(S_f + at, log_pi[None, :] + scaled, mask=inside)
        store_softmax_part(parts, PART_F, log_pi[None, :] + scaled, rows, live, held, t, T, B)


class Scales(NamedTuple):
    """What turns a logit back into a cosine, and a cosine's slope into a vector's."""

    log_pi: Tensor  # (C,)
    norm: Tensor  # (B,) of the features; NaN in a row with a non-finite one
    norm_g: Tensor  # (C,) of mu_g
    norm_f: Tensor  # (C,) of mu_f


class Logits(NamedTuple):
    """What the launch leaves behind; None where a head was left out."""

    S_g: Tensor | None  # (B, C)
    S_f: Tensor | None  # (B, C)
    norm: Tensor  # (B,) of the features
    norm_g: Tensor | None  # (C,) of mu_g
    norm_f: Tensor | None  # (C,) of mu_f
    parts: Tensor  # (PARTS, 2, T, B)


def strides(x: Tensor | None) -> tuple[int, ...]:
    """Those of a matrix; zeros for one that is absent."""
    return (0, 0) if x is None else x.stride()


def launch_logits(
    features: Tensor,  # (B, D)
    log_prior: Tensor | None,  # (C,); None: none
    tau: float,
    *,
    mu: Tensor | None = None,  # (C, D) each; None: that head is left out
    mu_g: Tensor | None = None,
    mu_f: Tensor | None = None,
    estimate: str = "none",  # "likelihood" or "nearest": the partials that Eq. (3) or (3*) needs
) -> Logits:
    """S_g, S_f = [log_prior + cosine(features, m) / tau for m in (mu_g, mu_f)], and what softmax and argmax need."""
    heads = [m for m in (mu, mu_g, mu_f) if m is not None]
    (B, D), C = features.shape, heads[0].shape[0]
    config = configs.logits(B, C, D, configs.precision(features, *heads))
    tiles = triton.cdiv(C, config.BLOCK_C)

    S_g, norm_g = (None, None) if mu_g is None else (empty(features, B, C), empty(features, C))
    S_f, norm_f = (None, None) if mu_f is None else (empty(features, B, C), empty(features, C))
    norm, parts = empty(features, B), empty(features, PARTS - (estimate == "none"), 2, tiles, B)
    given, made = (features, mu, mu_g, mu_f, log_prior), (S_g, S_f, norm, norm_g, norm_f, parts)
    launch(
        logits_kernel, (tiles * triton.cdiv(B, config.BLOCK_B),), *given, *made,
        B, C, D, tiles, *strides(features), *strides(mu), *strides(mu_g), *strides(mu_f), 1.0 / tau,
        reads=given, writes=made, ESTIMATE=estimate, **vars(config),
    )  # fmt: skip
    return Logits(S_g, S_f, norm, norm_g, norm_f, parts)
