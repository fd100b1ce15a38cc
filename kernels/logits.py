"""The logits of up to three posteriors from one read of the features, and what a softmax needs: Eq. (2)."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.launch import empty, launch
from fastget.kernels.tile import PART_ESTIMATE, PART_F, PART_G, PART_MU, PARTS, at_least_eps, first_best, product


@triton.jit
def store_softmax_part(parts, PART: tl.constexpr, scores, offs_b, mask_b, mask_c, t, T, B):
    """This class tile's row maximum and sum of exponentials."""
    scores = tl.where(mask_c[None, :], scores, float("-inf"))
    top = tl.max(scores, 1)
    safe = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp(scores - safe[:, None]), 1)
    at = parts + (T * (2 * PART) + t).to(tl.int64) * B + offs_b
    tl.store(at, top, mask=mask_b)
    tl.store(at + tl.cast(T, tl.int64) * B, total, mask=mask_b)


@triton.jit
def store_best_part(parts, PART: tl.constexpr, scores, offs_b, mask_b, offs_c, mask_c, t, T, B, C):
    """This class tile's row maximum and the lowest class that reaches it."""
    top, best = first_best(scores, offs_c, mask_c, C - 1)
    at = parts + (T * (2 * PART) + t).to(tl.int64) * B + offs_b
    tl.store(at, top, mask=mask_b)
    tl.store(at + tl.cast(T, tl.int64) * B, best.to(tl.float32), mask=mask_b)


@triton.jit(do_not_specialize=["B", "T"])
def logits_kernel(
    features,  # (B, D)
    mu, mu_g, mu_f,  # (C, D) each; None: that head is left out
    log_prior,  # (C,); None: none
    S_g, S_f,  # (B, C) out
    norm, norm_g, norm_f,  # (B,), (C,), (C,) out: of features, mu_g, mu_f
    parts,  # (PARTS, 2, T, B) out
    B, C, D, T, features_b, features_d, mu_c, mu_d, g_c, g_d, f_c, f_d, inv_tau,
    ESTIMATE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """S[b,c] = log_prior[c] + f_b . mu_c / (|f_b| |mu_c| tau), a zero vector having cosine 0.

    dS/df_b = (mu_c / |mu_c| - cos f_b / |f_b|) / (|f_b| tau), and with f and mu exchanged: kernels/backward.py.
    One program makes one tile of rows and classes for all heads; the norms are summed in the same loop.
    """
    t = tl.program_id(0) % T
    block = tl.program_id(0) // T
    offs_b = block * BLOCK_B + tl.arange(0, BLOCK_B)
    offs_c = t * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_b, mask_c = offs_b < B, offs_c < C
    row = features + offs_b[:, None].to(tl.int64) * features_b
    c = offs_c[None, :].to(tl.int64)

    # 1. the products with each head's vectors, and all squared norms
    dots = tl.zeros((BLOCK_B, BLOCK_C), tl.float32)
    dots_g = tl.zeros((BLOCK_B, BLOCK_C), tl.float32)
    dots_f = tl.zeros((BLOCK_B, BLOCK_C), tl.float32)
    square = tl.zeros((BLOCK_B,), tl.float32)
    square_mu = tl.zeros((BLOCK_C,), tl.float32)
    square_g = tl.zeros((BLOCK_C,), tl.float32)
    square_f = tl.zeros((BLOCK_C,), tl.float32)
    for d0 in range(0, D, BLOCK_D):
        offs_d = d0 + tl.arange(0, BLOCK_D)
        mask_d = offs_d < D
        d, mask = offs_d[:, None].to(tl.int64), mask_d[:, None] & mask_c[None, :]
        f = tl.load(row + offs_d[None, :].to(tl.int64) * features_d, mask=mask_b[:, None] & mask_d[None, :], other=0.0)
        wide = f.to(tl.float32)
        square += tl.sum(wide * wide + wide * 0.0, 1)  # inf * 0 is NaN: a row that is not finite gets a norm of NaN
        if mu is not None:
            m = tl.load(mu + c * mu_c + d * mu_d, mask=mask, other=0.0)
            dots = product(f, m, dots, PRECISION)
            square_mu += tl.sum(m.to(tl.float32) * m.to(tl.float32), 0)
        if mu_g is not None:
            m_g = tl.load(mu_g + c * g_c + d * g_d, mask=mask, other=0.0)
            dots_g = product(f, m_g, dots_g, PRECISION)
            square_g += tl.sum(m_g.to(tl.float32) * m_g.to(tl.float32), 0)
        if mu_f is not None:
            m_f = tl.load(mu_f + c * f_c + d * f_d, mask=mask, other=0.0)
            dots_f = product(f, m_f, dots_f, PRECISION)
            square_f += tl.sum(m_f.to(tl.float32) * m_f.to(tl.float32), 0)

    # 2. logits, and each head's partials of this tile
    log_pi = tl.zeros((BLOCK_C,), tl.float32)
    if log_prior is not None:
        log_pi = tl.load(log_prior + offs_c, mask=mask_c, other=0.0).to(tl.float32)
    length = tl.sqrt(square)
    if t == 0:
        tl.store(norm + offs_b, length, mask=mask_b)
    length = at_least_eps(length)[:, None]
    at = offs_b[:, None].to(tl.int64) * C + offs_c[None, :]
    mask = mask_b[:, None] & mask_c[None, :]
    if mu is not None:
        cos = dots / (length * at_least_eps(tl.sqrt(square_mu))[None, :])
        scores = log_pi[None, :] + cos * inv_tau
        store_best_part(parts, PART_MU, scores, offs_b, mask_b, offs_c, mask_c, t, T, B, C)
        if ESTIMATE == "nearest":
            store_best_part(parts, PART_ESTIMATE, cos, offs_b, mask_b, offs_c, mask_c, t, T, B, C)
    if mu_g is not None:
        length_g = tl.sqrt(square_g)
        if block == 0:
            tl.store(norm_g + offs_c, length_g, mask=mask_c)
        scaled = dots_g / (length * at_least_eps(length_g)[None, :]) * inv_tau
        tl.store(S_g + at, log_pi[None, :] + scaled, mask=mask)
        store_softmax_part(parts, PART_G, log_pi[None, :] + scaled, offs_b, mask_b, mask_c, t, T, B)
        if ESTIMATE == "likelihood":
            store_softmax_part(parts, PART_ESTIMATE, scaled, offs_b, mask_b, mask_c, t, T, B)
    if mu_f is not None:
        length_f = tl.sqrt(square_f)
        if block == 0:
            tl.store(norm_f + offs_c, length_f, mask=mask_c)
        scaled = dots_f / (length * at_least_eps(length_f)[None, :]) * inv_tau
        tl.store(S_f + at, log_pi[None, :] + scaled, mask=mask)
        store_softmax_part(parts, PART_F, log_pi[None, :] + scaled, offs_b, mask_b, mask_c, t, T, B)


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
        writes=made, ESTIMATE=estimate, **vars(config),
    )  # fmt: skip
    return Logits(S_g, S_f, norm, norm_g, norm_f, parts)
