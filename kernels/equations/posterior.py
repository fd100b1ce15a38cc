"""Eq. (2) by itself, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_like, check_pair, check_tau
from fastget.kernels.equations.slope import gradient_fake, logit_gradients, one_head, one_head_fake, spread
from fastget.kernels.launch import empty, launch
from fastget.kernels.tile import PART_G, first_best, merged_softmax
from fastget.kernels.wrap import Differentiable, Operator


@triton.jit(do_not_specialize=["B", "T"])
def softmax_kernel(
    S,  # (B, C)
    parts,  # (PARTS, 2, T, B)
    P,  # (B, C) out
    B, C, T,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """P[b,c] = exp(S[b,c]) / sum_c' exp(S[b,c']).  dS = P (dP - sum_c P dP): softmax_slope_kernel."""
    rows = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    classes = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    live = rows < B
    inside = live[:, None] & (classes < C)[None, :]
    m, total = merged_softmax(parts, PART_G, rows, live, B, T)
    at = rows[:, None].to(tl.int64) * C + classes[None, :]
    logits = tl.load(S + at, mask=inside, other=0.0)
    tl.store(P + at, tl.exp(logits - m[:, None]) / total[:, None], mask=inside)


@triton.jit(do_not_specialize=["B"])
def softmax_slope_kernel(
    P,  # (B, C)
    dP,  # (B, C)
    dS,  # (B, C) out
    B, C, dp_b, dp_c,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dS[b,c] = P[b,c] (dP[b,c] - sum_c' P[b,c'] dP[b,c']).

    Where a class has P over 1/2, dP is taken less its value there, which changes nothing: what is summed are then the
    small shares of the others, and nothing cancels when P is near 1.
    """
    rows = (tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)).to(tl.int64)
    live = rows < B
    peak = tl.full((BLOCK_B,), -1.0, tl.float32)
    best = tl.zeros((BLOCK_B,), tl.int32)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        held = classes < C
        p = tl.load(P + rows[:, None] * C + classes[None, :], mask=live[:, None] & held[None, :], other=0.0)
        top, column = first_best(p, classes, held[None, :], C - 1)
        best = tl.where(top > peak, column, best)
        peak = tl.maximum(peak, top)
    level = tl.load(dP + rows * dp_b + best.to(tl.int64) * dp_c, mask=live, other=0.0)
    level = tl.where(peak > 0.5, level, 0.0)[:, None]
    mean = tl.zeros((BLOCK_B,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        inside = live[:, None] & (classes < C)[None, :]
        p = tl.load(P + rows[:, None] * C + classes[None, :], mask=inside, other=0.0)
        d = tl.load(dP + rows[:, None] * dp_b + classes[None, :].to(tl.int64) * dp_c, mask=inside, other=0.0)
        mean += tl.sum(tl.where(inside, p * (d - level), 0.0), 1)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        inside = live[:, None] & (classes < C)[None, :]
        at = rows[:, None] * C + classes[None, :]
        p = tl.load(P + at, mask=inside, other=0.0)
        d = tl.load(dP + rows[:, None] * dp_b + classes[None, :].to(tl.int64) * dp_c, mask=inside, other=0.0)
        tl.store(dS + at, p * ((d - level) - mean[:, None]), mask=inside)


def _posterior(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, tau: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    S, parts, norm, norm_p = one_head(features, prototypes, log_prior, tau)
    B, C = S.shape
    P, config = empty(features, B, C), configs.elementwise(C)
    launch(
        softmax_kernel, (triton.cdiv(B, config.BLOCK_B), triton.cdiv(C, config.BLOCK_C)),
        S, parts, P, B, C, parts.shape[2], reads=(S, parts), writes=(P,), **vars(config),
    )  # fmt: skip
    return P, S, norm, norm_p


def _posterior_fake(features: Tensor, prototypes: Tensor, log_prior: Tensor, tau: float) -> tuple[Tensor, ...]:
    P = features.new_empty((features.shape[0], prototypes.shape[0]), dtype=torch.float32)
    return (P, *one_head_fake(features, prototypes))


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
    B, C = P.shape
    dS, config = empty(P, B, C), configs.walk(C)
    launch(
        softmax_slope_kernel, (triton.cdiv(B, config.BLOCK_B),), P, dP, dS, B, C, *dP.stride(),
        reads=(P, dP), writes=(dS,), **vars(config),
    )  # fmt: skip
    return logit_gradients(features, prototypes, S, log_prior, norm, norm_p, dS, tau, needs)


def _posterior_backward(run: Any, ctx: Any, dP: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if dP is None:
        return None, None, None, None
    needs = list(ctx.needs_input_grad[:3])
    return (*spread(run(*ctx.saved_tensors, dP, ctx.tau, needs), needs, ctx.prior_dtype), None)


_posterior_op = Differentiable(
    "posterior", _posterior, _posterior_fake, _posterior_setup,
    Operator("posterior_backward", _posterior_gradient, gradient_fake), _posterior_backward,
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
