"""What Eqs. (2) and (7)-(9) by themselves share: one head's logits, and the gradient of a given slope of them."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.equations.columns import launch_column_sums
from fastget.kernels.launch import launch
from fastget.kernels.logits import launch_logits
from fastget.kernels.tile import at_least_eps, cosine_of, product, store_gradient, vector_tile


@triton.jit
def given_tile(S, dS, log_prior, rows, live, classes, held, tau, C):
    """A given slope over tau, and the cosines, of one tile of rows and classes."""
    inside = live[:, None] & held[None, :]
    at = rows[:, None].to(tl.int64) * C + classes[None, :]
    logits = tl.load(S + at, mask=inside, other=float("-inf"))
    log_pi = tl.load(log_prior + classes, mask=held, other=0.0).to(tl.float32)[None, :]
    return tl.load(dS + at, mask=inside, other=0.0) / tau, cosine_of(logits, log_pi, tau)


@triton.jit
def add_tile(total, total_cos, d, cos, vectors, index, there, depth, deep, PRECISION: tl.constexpr):
    """total + sum_k d[:, k] v_k / |v_k| and total_cos + sum_k d[:, k] cos[:, k], over the vectors at `index`."""
    _, norms, _, _ = vectors
    norm = at_least_eps(tl.load(norms + index, mask=there, other=1.0))
    tile = vector_tile(vectors, index, there, depth, deep).to(tl.float32)
    return product(d / norm[None, :], tile, total, PRECISION), total_cos + tl.sum(d * cos, 1)


@triton.jit
def write_given_features(
    d_features, features, prototypes, S, dS, log_prior, tau, block, depth, deep, B, C, D,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One tile of d_features, over all classes in order."""
    rows = block * BLOCK_B + tl.arange(0, BLOCK_B)
    live = rows < B
    total = tl.zeros((BLOCK_B, BLOCK_D), tl.float32)
    total_cos = tl.zeros((BLOCK_B,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        held = classes < C
        d, cos = given_tile(S, dS, log_prior, rows, live, classes, held, tau, C)
        total, total_cos = add_tile(total, total_cos, d, cos, prototypes, classes, held, depth, deep, PRECISION)
    store_gradient(d_features, total, total_cos, features, rows, live, depth, deep, D)


@triton.jit
def write_given_prototypes(
    d_prototypes, features, prototypes, S, dS, log_prior, tau, block, depth, deep, B, C, D,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One tile of d_prototypes, over all rows in order."""
    classes = block * BLOCK_C + tl.arange(0, BLOCK_C)
    held = classes < C
    total = tl.zeros((BLOCK_C, BLOCK_D), tl.float32)
    total_cos = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        rows = b0 + tl.arange(0, BLOCK_B)
        live = rows < B
        d, cos = given_tile(S, dS, log_prior, rows, live, classes, held, tau, C)
        d, cos = tl.trans(d), tl.trans(cos)
        total, total_cos = add_tile(total, total_cos, d, cos, features, rows, live, depth, deep, PRECISION)
    store_gradient(d_prototypes, total, total_cos, prototypes, classes, held, depth, deep, D)


@triton.jit(do_not_specialize=["B"])
def slope_kernel(
    features, prototypes,  # (B, D), (C, D)
    S, dS,  # (B, C)
    log_prior,  # (C,)
    norm, norm_p,  # (B,), (C,)
    d_features, d_prototypes,  # out: (B, D), (C, D); None: not asked for
    B, C, D, stride_b, stride_d, p_c, p_d, tau,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """With d = dS / tau: d_features_b = (sum_c d mu_c / |mu_c| - sum_c d cos f_b / |f_b|) / |f_b|, and with f and mu
    exchanged: as kernels/backward.py, for one head whose slope is given."""
    f, p = (features, norm, stride_b, stride_d), (prototypes, norm_p, p_c, p_d)
    across = tl.cdiv(D, BLOCK_D)
    block = tl.program_id(0) // across
    depth = tl.program_id(0) % across * BLOCK_D + tl.arange(0, BLOCK_D)
    deep = depth < D
    features_blocks = 0 if d_features is None else tl.cdiv(B, BLOCK_B)
    if block < features_blocks:
        if d_features is not None:
            write_given_features(
                d_features, f, p, S, dS, log_prior, tau, block, depth, deep, B, C, D,
                PRECISION, BLOCK_B, BLOCK_C, BLOCK_D,
            )  # fmt: skip
    else:
        if d_prototypes is not None:
            write_given_prototypes(
                d_prototypes, f, p, S, dS, log_prior, tau, block - features_blocks, depth, deep, B, C, D,
                PRECISION, BLOCK_B, BLOCK_C, BLOCK_D,
            )  # fmt: skip


def one_head(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, tau: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """S (B, C), partials, norms of features (B,) and prototypes (C,)."""
    logits = launch_logits(features, log_prior, tau, mu_g=prototypes)
    assert logits.S_g is not None
    assert logits.norm_g is not None
    return logits.S_g, logits.parts, logits.norm, logits.norm_g


def one_head_fake(features: Tensor, prototypes: Tensor) -> tuple[Tensor, ...]:
    """S and norms, as the gradient keeps them."""
    B, C = features.shape[0], prototypes.shape[0]
    return tuple(features.new_empty(shape, dtype=torch.float32) for shape in ((B, C), (B,), (C,)))


def logit_gradients(
    features: Tensor, prototypes: Tensor, S: Tensor, log_prior: Tensor, norm: Tensor, norm_p: Tensor, dS: Tensor,
    tau: float, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Gradients to features, prototypes and log prior, those that are asked for, from the logits' gradient."""
    (B, D), C = features.shape, prototypes.shape[0]
    d_features, d_prototypes = (
        torch.empty(x.shape, dtype=x.dtype, device=x.device) if need else None
        for x, need in zip((features, prototypes), needs, strict=False)
    )
    config = configs.slope(B, configs.slope_precision(features, prototypes))
    blocks = triton.cdiv(B, config.BLOCK_B) * needs[0] + triton.cdiv(C, config.BLOCK_C) * needs[1]
    if blocks:
        inputs, outputs = (features, prototypes, S, dS, log_prior, norm, norm_p), (d_features, d_prototypes)
        launch(
            slope_kernel, (blocks * triton.cdiv(D, config.BLOCK_D),), *inputs, *outputs,
            B, C, D, *features.stride(), *prototypes.stride(), tau, reads=inputs, writes=outputs, **vars(config),
        )  # fmt: skip
    d_log_prior = launch_column_sums(dS) if needs[2] else None
    return [d for d in (d_features, d_prototypes, d_log_prior) if d is not None]


def gradient_fake(features: Tensor, prototypes: Tensor, *rest: Any) -> list[Tensor]:
    needs = rest[-1]
    like = [torch.empty_like(t, memory_format=torch.contiguous_format)
            for t, need in zip((features, prototypes), needs, strict=False) if need]  # fmt: skip
    return [*like, *([features.new_empty(prototypes.shape[:1], dtype=torch.float32)] if needs[2] else [])]


def spread(made: list[Tensor], needs: list[bool], prior_dtype: torch.dtype) -> list[Tensor | None]:
    """One gradient or None per input; the log prior's in its own type."""
    left = iter(made)
    found: list[Tensor | None] = [next(left) if need else None for need in needs]
    if found[2] is not None:
        found[2] = found[2].to(prior_dtype)
    return found
