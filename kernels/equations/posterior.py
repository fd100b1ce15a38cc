"""Eq. (2) by itself, with gradients, and the histogram of Eq. (3*)."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.backward import launch_backward
from fastget.kernels.checks import check_constant, check_like, check_pair, check_tau
from fastget.kernels.equations.columns import launch_column_sums
from fastget.kernels.launch import launch
from fastget.kernels.logits import LOG_PRIOR, NO_PRIOR, launch_logits
from fastget.kernels.tile import first_best, merged_best, merged_softmax, row_logits
from fastget.kernels.wrap import Differentiable, Operator


@triton.jit(do_not_specialize=["B", "T"])
def softmax_kernel(
    cos,  # (B, C) int32
    log_prior,  # (C,) float64
    parts,  # (slots, T, B)
    P,  # (B, C) out
    B, C, T, inv_tau,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """P[b,c] = exp(S[b,c]) / sum_c' exp(S[b,c']), S = log_prior + cos / tau.

    dS = P (dP - sum_c P dP): softmax_slope_kernel.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    classes = tl.program_id(1) * BN + tl.arange(0, BN)
    live = rows < B
    held = classes < C
    inside = live[:, None] & held[None, :]
    top, m, total = merged_softmax(parts, 0, 1, rows, live, B, T, inv_tau)
    at = rows[:, None].to(tl.int64) * C + classes[None, :]
    logits = row_logits(cos + rows[:, None].to(tl.int64) * C, log_prior, classes, held, inside, top, inv_tau)
    tl.store(P + at, tl.exp(logits - m[:, None]) / total[:, None], mask=inside)


@triton.jit(do_not_specialize=["B"])
def softmax_slope_kernel(
    P,  # (B, C)
    dP,  # (B, C)
    dS,  # (B, C) out
    B, C, dp_b, dp_c,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dS[b,c] = P[b,c] (dP[b,c] - sum_c' P[b,c'] dP[b,c']).

    Where a class has P over 1/2, dP is taken less its value there, which changes nothing: what is summed are then the
    small shares of the others, and nothing cancels when P is near 1.
    """
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    live = rows < B
    peak = tl.full((BM,), -1.0, tl.float32)
    best = tl.zeros((BM,), tl.int32)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        held = classes < C
        p = tl.load(P + rows[:, None] * C + classes[None, :], mask=live[:, None] & held[None, :], other=0.0)
        top, column = first_best(p, classes, held[None, :], C - 1)
        best = tl.where(top > peak, column, best)
        peak = tl.maximum(peak, top)
    level = tl.load(dP + rows * dp_b + best.to(tl.int64) * dp_c, mask=live, other=0.0)
    level = tl.where(peak > 0.5, level, 0.0)[:, None]
    mean = tl.zeros((BM,), tl.float32)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        inside = live[:, None] & (classes < C)[None, :]
        p = tl.load(P + rows[:, None] * C + classes[None, :], mask=inside, other=0.0)
        d = tl.load(dP + rows[:, None] * dp_b + classes[None, :].to(tl.int64) * dp_c, mask=inside, other=0.0)
        mean += tl.sum(tl.where(inside, p * (d - level), 0.0), 1)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        inside = live[:, None] & (classes < C)[None, :]
        at = rows[:, None] * C + classes[None, :]
        p = tl.load(P + at, mask=inside, other=0.0)
        d = tl.load(dP + rows[:, None] * dp_b + classes[None, :].to(tl.int64) * dp_c, mask=inside, other=0.0)
        tl.store(dS + at, p * ((d - level) - mean[:, None]), mask=inside)


@triton.jit(do_not_specialize=["B", "T"])
def histogram_kernel(
    parts,  # (slots, T, B)
    share,  # (C,) out
    B, C, T,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """share[c] = (1/B) sum_b [argmax_c' cos(f_b, mu_c') = c]. No gradient."""
    classes = tl.program_id(0) * BN + tl.arange(0, BN)
    count = tl.zeros((BN,), tl.float32)
    for b0 in range(0, B, BM):
        rows = b0 + tl.arange(0, BM)
        live = rows < B
        nearest = merged_best(parts, 6, rows, live, B, T, C - 1)
        count += tl.sum(((nearest[:, None] == classes[None, :]) & live[:, None]).to(tl.float32), 0)
    tl.store(share + classes, count / B, mask=classes < C)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


# --- Eq. (2) -----------------------------------------------------------------------------------


def _posterior(features: Tensor, prototypes: Tensor, log_prior: Tensor, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    logits = launch_logits(features, log_prior, tau, mu_g=prototypes, prior_kind=LOG_PRIOR)
    assert logits.cos_g is not None
    B, C = logits.cos_g.shape
    P, config = _empty(features, B, C), configs.elementwise(C)
    launch(
        softmax_kernel, (triton.cdiv(B, config.BM), triton.cdiv(C, config.BN)),
        logits.cos_g, logits.scales[:C], logits.parts, P, B, C, logits.tiles, 1.0 / tau,
        reads=(logits.cos_g, logits.scales[:C], logits.parts), writes=(P,),
        BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    return P, logits.cos_g, logits.scales


def _posterior_fake(features: Tensor, prototypes: Tensor, log_prior: Tensor, tau: float) -> tuple[Tensor, ...]:
    B, C = features.shape[0], prototypes.shape[0]
    wide = features.new_empty
    return (
        wide((B, C), dtype=torch.float32),
        wide((B, C), dtype=torch.int32),
        wide((3 * C + B,), dtype=torch.float64),
    )


def _posterior_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    features, prototypes, log_prior, ctx.tau = inputs
    ctx.prior_dtype = log_prior.dtype
    ctx.save_for_backward(features, prototypes, *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def logit_gradients(
    features: Tensor, prototypes: Tensor, cos: Tensor, dS: Tensor, scales: Tensor, tau: float, needs: list[bool]
) -> list[Tensor]:
    """Gradients to features, prototypes and log prior, those that are asked for, from the logits' gradient."""
    found = launch_backward(
        features, prototypes, None, cos, None, scales, tau, needs=(needs[0], needs[1], False), dS=dS
    )
    out = [d for d in found if d is not None]
    if needs[2]:
        out.append(launch_column_sums(dS))
    return out


def _posterior_gradient(
    features: Tensor, prototypes: Tensor, P: Tensor, cos: Tensor, scales: Tensor, dP: Tensor, tau: float,
    needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    B, C = P.shape
    dS, config = _empty(P, B, C), configs.walk(C)
    launch(
        softmax_slope_kernel, (triton.cdiv(B, config.BM),), P, dP, dS, B, C, *dP.stride(),
        reads=(P, dP), writes=(dS,), BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    return logit_gradients(features, prototypes, cos, dS, scales, tau, needs)


def gradient_fake(features: Tensor, prototypes: Tensor, *rest: Any) -> list[Tensor]:
    needs = rest[-1]
    like = [torch.empty_like(t, memory_format=torch.contiguous_format)
            for t, need in zip((features, prototypes), needs, strict=False) if need]  # fmt: skip
    return [*like, *([features.new_empty(prototypes.shape[:1], dtype=torch.float32)] if needs[2] else [])]


def _posterior_backward(run: Any, ctx: Any, dP: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if dP is None:
        return None, None, None, None
    needs = list(ctx.needs_input_grad[:3])
    return (*spread(run(*ctx.saved_tensors, dP, ctx.tau, needs), needs, ctx.prior_dtype), None)


def spread(made: list[Tensor], needs: list[bool], prior_dtype: torch.dtype) -> list[Tensor | None]:
    """One gradient or None per input; the log prior's in its own type."""
    left = iter(made)
    found: list[Tensor | None] = [next(left) if need else None for need in needs]
    if found[2] is not None:
        found[2] = found[2].to(prior_dtype)
    return found


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


# --- Eq. (3*) ----------------------------------------------------------------------------------


def _nearest(features: Tensor, mu: Tensor) -> Tensor:
    logits = launch_logits(features, None, 1.0, mu=mu, prior_kind=NO_PRIOR)
    B, C = features.shape[0], mu.shape[0]
    share, config = _empty(features, C), configs.columns(C)
    launch(
        histogram_kernel, (triton.cdiv(C, config.BN),), logits.parts, share, B, C, logits.tiles,
        reads=(logits.parts,), writes=(share,), BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    return share


def _nearest_fake(features: Tensor, mu: Tensor) -> Tensor:
    return features.new_empty(mu.shape[:1], dtype=torch.float32)


_nearest_op = Operator("nearest_histogram", _nearest, _nearest_fake)


def nearest_histogram(
    features: Tensor,  # (B, D)
    mu: Tensor,  # (C, D)
) -> Tensor:
    """one_hot(cosine(features, mu).argmax(1)).mean(0), the lowest class on a tie: Eq. (3*). (C,). No gradient."""
    check_pair(features, mu, "mu")
    check_constant("nearest_histogram", features, mu)
    share: Tensor = _nearest_op(features, mu)
    return share
