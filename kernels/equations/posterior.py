"""Eq. (2) by itself, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.backward import Head, launch_backward
from fastget.kernels.checks import check_like, check_pair, check_tau
from fastget.kernels.equations.columns import launch_column_sums
from fastget.kernels.launch import empty, launch
from fastget.kernels.logits import launch_logits
from fastget.kernels.tile import PART_G, at_least_eps, cosine_of, first_best, merged_softmax
from fastget.kernels.wrap import Differentiable, Operator


@triton.jit(do_not_specialize=["B", "T"])
def softmax_kernel(
    S,  # (B, C)
    parts,  # (PARTS, 2, T, B)
    P,  # (B, C) out
    B, C, T,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """P[b,c] = exp(S[b,c]) / sum_c' exp(S[b,c']).  dS = P (dP - sum_c P dP): posterior_slope_kernel."""
    offs_b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_b = offs_b < B
    mask = mask_b[:, None] & (offs_c < C)[None, :]
    m, total = merged_softmax(parts, PART_G, offs_b, mask_b, B, T)
    at = offs_b[:, None].to(tl.int64) * C + offs_c[None, :]
    logits = tl.load(S + at, mask=mask, other=0.0)
    tl.store(P + at, tl.exp(logits - m[:, None]) / total[:, None], mask=mask)


@triton.jit(do_not_specialize=["B"])
def posterior_slope_kernel(
    P, S,  # (B, C)
    dP,  # (B, C)
    log_prior,  # (C,)
    norm, norm_p,  # (B,), (C,): of the features and the prototypes
    slopes,  # (2, B, C) out: dS / |mu_c|, dS / |f_b|
    cos_rows,  # (1, B) out: sum_c dS cos
    parts,  # (blocks, 2, C) out: each block's column sums of dS, and of dS cos
    B, C, dP_b, dP_c, tau,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dS[b,c] = P[b,c] (dP[b,c] - sum_c' P[b,c'] dP[b,c']), as kernels/backward.py takes it.

    Where a class has P over 1/2, dP is taken less its value there, which changes nothing: what is summed are then the
    small shares of the others, and nothing cancels when P is near 1.
    """
    block = tl.program_id(0)
    offs_b = (block * BLOCK_B + tl.arange(0, BLOCK_B)).to(tl.int64)
    mask_b = offs_b < B
    row, row_dP = offs_b[:, None] * C, dP + offs_b[:, None] * dP_b

    # 1. the likeliest class, and dP there
    peak = tl.full((BLOCK_B,), -1.0, tl.float32)
    best = tl.zeros((BLOCK_B,), tl.int32)
    for c0 in range(0, C, BLOCK_C):
        offs_c = c0 + tl.arange(0, BLOCK_C)
        mask_c = offs_c < C
        p = tl.load(P + row + offs_c[None, :], mask=mask_b[:, None] & mask_c[None, :], other=0.0)
        top, column = first_best(p, offs_c, mask_c, C - 1)
        best = tl.where(top > peak, column, best)
        peak = tl.maximum(peak, top)
    level = tl.load(dP + offs_b * dP_b + best.to(tl.int64) * dP_c, mask=mask_b, other=0.0)
    level = tl.where(peak > 0.5, level, 0.0)[:, None]

    # 2. sum_c P dP
    mean = tl.zeros((BLOCK_B,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        offs_c = c0 + tl.arange(0, BLOCK_C)
        mask = mask_b[:, None] & (offs_c < C)[None, :]
        p = tl.load(P + row + offs_c[None, :], mask=mask, other=0.0)
        d = tl.load(row_dP + offs_c[None, :].to(tl.int64) * dP_c, mask=mask, other=0.0)
        mean += tl.sum(tl.where(mask, p * (d - level), 0.0), 1)

    # 3. dS over both norms, and its sums along rows and columns
    along = tl.zeros((BLOCK_B,), tl.float32)
    length = at_least_eps(tl.load(norm + offs_b, mask=mask_b, other=1.0))
    for c0 in range(0, C, BLOCK_C):
        offs_c = c0 + tl.arange(0, BLOCK_C)
        mask_c = offs_c < C
        mask = mask_b[:, None] & mask_c[None, :]
        p = tl.load(P + row + offs_c[None, :], mask=mask, other=0.0)
        d = tl.load(row_dP + offs_c[None, :].to(tl.int64) * dP_c, mask=mask, other=0.0)
        slope = tl.where(mask, p * ((d - level) - mean[:, None]), 0.0)
        logits = tl.load(S + row + offs_c[None, :], mask=mask, other=float("-inf"))
        log_pi = tl.load(log_prior + offs_c, mask=mask_c, other=0.0).to(tl.float32)
        turned = slope * cosine_of(logits, log_pi[None, :], tau)
        along += tl.sum(turned, 1)
        length_p = at_least_eps(tl.load(norm_p + offs_c, mask=mask_c, other=1.0))
        tl.store(slopes + row + offs_c[None, :], slope / length_p[None, :], mask=mask)
        tl.store(slopes + tl.cast(B, tl.int64) * C + row + offs_c[None, :], slope / length[:, None], mask=mask)
        part = parts + block.to(tl.int64) * 2 * C + offs_c
        tl.store(part, tl.sum(slope, 0), mask=mask_c)
        tl.store(part + C, tl.sum(turned, 0), mask=mask_c)
    tl.store(cos_rows + offs_b, along, mask=mask_b)


def _posterior(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, tau: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made = launch_logits(features, log_prior, tau, mu_g=prototypes)
    assert made.S_g is not None
    assert made.norm_g is not None
    B, C = made.S_g.shape
    P, config = empty(features, B, C), configs.elementwise(C)
    launch(
        softmax_kernel, (triton.cdiv(B, config.BLOCK_B), triton.cdiv(C, config.BLOCK_C)),
        made.S_g, made.parts, P, B, C, made.parts.shape[2], writes=(P,), **vars(config),
    )  # fmt: skip
    return P, made.S_g, made.norm, made.norm_g


def _posterior_fake(features: Tensor, prototypes: Tensor, log_prior: Tensor, tau: float) -> tuple[Tensor, ...]:
    B, C = features.shape[0], prototypes.shape[0]
    return tuple(features.new_empty(shape, dtype=torch.float32) for shape in ((B, C), (B, C), (B,), (C,)))


def _posterior_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    features, prototypes, log_prior, ctx.tau = inputs
    ctx.prior_dtype = log_prior.dtype
    ctx.save_for_backward(features, prototypes, log_prior, *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _posterior_gradient(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, P: Tensor, S: Tensor, norm: Tensor, norm_p: Tensor,
    dP: Tensor, tau: float, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Those to features, prototypes and log prior that `needs` asks for."""
    (B, C), config = P.shape, configs.walk(P.shape[1])
    blocks = triton.cdiv(B, config.BLOCK_B)
    slopes, cos_rows, parts = empty(P, 2, B, C), empty(P, 1, B), empty(P, blocks, 2 * C)
    made = (slopes, cos_rows, parts)
    launch(
        posterior_slope_kernel, (blocks,), P, S, dP, log_prior, norm, norm_p, *made, B, C, *dP.stride(), tau,
        writes=made, **vars(config),
    )  # fmt: skip
    sums = launch_column_sums(parts).view(2, C)
    found: list[Tensor | None] = [None, None]
    if needs[0] or needs[1]:
        *found, _ = launch_backward(
            features, norm, cos_rows, sums[1:], 1 / tau, None, Head(prototypes, slopes, norm_p), None,
            (needs[0], needs[1], False), configs.slope_precision(features, prototypes),
        )  # fmt: skip
    return [d for d in (*found, sums[0].clone() if needs[2] else None) if d is not None]


def _gradient_fake(features: Tensor, prototypes: Tensor, log_prior: Tensor, *rest: Any) -> list[Tensor]:
    like = [torch.empty_like(t, memory_format=torch.contiguous_format)
            for t, need in zip((features, prototypes), rest[-1], strict=False) if need]  # fmt: skip
    return [*like, *([log_prior.new_empty(log_prior.shape, dtype=torch.float32)] if rest[-1][2] else [])]


def _posterior_backward(run: Any, ctx: Any, dP: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if dP is None:
        return None, None, None, None
    needs = list(ctx.needs_input_grad[:3])
    made = iter(run(*ctx.saved_tensors, dP, ctx.tau, needs))
    d_features, d_prototypes, d_log_prior = (next(made) if need else None for need in needs)
    return d_features, d_prototypes, None if d_log_prior is None else d_log_prior.to(ctx.prior_dtype), None


_posterior_op = Differentiable(
    "posterior", _posterior, _posterior_fake, _posterior_setup,
    Operator("posterior_backward", _posterior_gradient, _gradient_fake), _posterior_backward,
)  # fmt: skip


def posterior(
    features: Tensor,  # (B, D)
    prototypes: Tensor,  # (C, D)
    log_prior: Tensor,  # (C,)
    tau: float,
) -> Tensor:
    """torch.softmax(log_prior + cosine(features, prototypes) / tau, dim=-1): Eq. (2). (B, C), float32."""
    check_pair(features, prototypes)
    check_like("log_prior", log_prior, (prototypes.shape[0],), features.device)
    check_tau(tau)
    P: Tensor = _posterior_op(features, prototypes, log_prior.contiguous(), float(tau))[0]
    return P
