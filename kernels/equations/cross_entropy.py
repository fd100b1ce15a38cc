"""The soft cross-entropy of Eqs. (7)-(9) by itself, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_like, check_pair, check_tau
from fastget.kernels.equations.posterior import gradient_fake, logit_gradients, spread
from fastget.kernels.launch import launch
from fastget.kernels.logits import LOG_PRIOR, launch_logits
from fastget.kernels.tile import first_best, merged_softmax, row_logits
from fastget.kernels.wrap import Differentiable, Operator


@triton.jit(do_not_specialize=["B", "T"])
def cross_entropy_kernel(
    cos,  # (B, C) int32
    log_prior,  # (C,) float64
    parts,  # (slots, T, B)
    labels,  # (B, C)
    row_loss,  # (B,) out
    row_stats,  # (6, B) out: max and sum of exponentials of P, sum of the labels, top, likeliest class, slope there
    B, C, T, y_b, y_c, inv_tau,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """loss[b] = -sum_c y[b,c] log P[b,c].  dS = P sum_c y - y: cross_entropy_slope_kernel.

    The slope at a likeliest class of P over 1/2 is minus the sum of all others: P - y cancels when P is near 1.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    live = rows < B
    top, m, total = merged_softmax(parts, 0, 1, rows, live, B, T, inv_tau)
    log_total = tl.log(total)
    rows = rows.to(tl.int64)
    row, row_y = cos + rows[:, None] * C, labels + rows[:, None] * y_b
    given = tl.zeros((BM, BN), tl.float32)  # added up after the loop: Triton up to 3.8 fails on a sum inside it
    peak = tl.full((BM,), float("-inf"), tl.float32)
    best = tl.zeros((BM,), tl.int32)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        held = classes < C
        inside = live[:, None] & held[None, :]
        logits = row_logits(row, log_prior, classes, held, inside, top, inv_tau)
        highest, column = first_best(logits, classes, held[None, :], C - 1)
        best = tl.where(highest > peak, column, best)
        peak = tl.maximum(peak, highest)
        given += tl.load(row_y + classes[None, :].to(tl.int64) * y_c, mask=inside, other=0.0).to(tl.float32)
    mass = tl.sum(given, 1)
    loss = tl.zeros((BM,), tl.float32)
    others = tl.zeros((BM,), tl.float32)
    own = tl.zeros((BM,), tl.float32)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        held = classes < C
        inside = live[:, None] & held[None, :]
        log_P = (row_logits(row, log_prior, classes, held, inside, top, inv_tau) - m[:, None]) - log_total[:, None]
        y = tl.load(row_y + classes[None, :].to(tl.int64) * y_c, mask=inside, other=0.0).to(tl.float32)
        loss -= tl.sum(tl.where(y == 0, 0.0, y * log_P), 1)
        slope = tl.where(inside, tl.exp(log_P) * mass[:, None] - y, 0.0)
        likeliest = classes[None, :] == best[:, None]
        others += tl.sum(tl.where(likeliest, 0.0, slope), 1)
        own += tl.sum(tl.where(likeliest, slope, 0.0), 1)
    wide_B = tl.cast(B, tl.int64)
    tl.store(row_loss + rows, loss, mask=live)
    tl.store(row_stats + rows, m, mask=live)
    tl.store(row_stats + wide_B + rows, total, mask=live)
    tl.store(row_stats + 2 * wide_B + rows, mass, mask=live)
    tl.store(row_stats + 3 * wide_B + rows, top, mask=live)
    tl.store(row_stats + 4 * wide_B + rows, best.to(tl.float32), mask=live)
    tl.store(row_stats + 5 * wide_B + rows, tl.where(total < 2, -others, own), mask=live)


@triton.jit(do_not_specialize=["B"])
def mean_kernel(x, out, B, BM: tl.constexpr):  # x (B,), out ()
    """out = sum_b x[b] / B, in order. One program."""
    total = tl.zeros((BM,), tl.float32)
    for b0 in range(0, B, BM):
        rows = b0 + tl.arange(0, BM)
        total += tl.load(x + rows, mask=rows < B, other=0.0)
    tl.store(out, tl.sum(total, 0) / B)


@triton.jit(do_not_specialize=["B"])
def cross_entropy_slope_kernel(
    cos,  # (B, C) int32
    log_prior,  # (C,) float64
    labels,  # (B, C)
    row_stats,  # (6, B)
    grad,  # ()
    dS,  # (B, C) out
    B, C, y_b, y_c, inv_tau,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dS[b,c] = grad (P[b,c] sum_c' y[b,c'] - y[b,c]) / B."""
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    classes = tl.program_id(1) * BN + tl.arange(0, BN)
    live = rows < B
    held = classes < C
    inside = live[:, None] & held[None, :]
    wide_B = tl.cast(B, tl.int64)
    m = tl.load(row_stats + rows, mask=live, other=0.0)
    total = tl.load(row_stats + wide_B + rows, mask=live, other=1.0)
    mass = tl.load(row_stats + 2 * wide_B + rows, mask=live, other=0.0)
    top = tl.load(row_stats + 3 * wide_B + rows, mask=live, other=0.0)
    best = tl.load(row_stats + 4 * wide_B + rows, mask=live, other=0.0).to(tl.int32)
    slope_best = tl.load(row_stats + 5 * wide_B + rows, mask=live, other=0.0)
    logits = row_logits(cos + rows[:, None] * C, log_prior, classes, held, inside, top, inv_tau)
    at_y = labels + rows[:, None] * y_b + classes[None, :].to(tl.int64) * y_c
    y = tl.load(at_y, mask=inside, other=0.0).to(tl.float32)
    P = tl.exp(logits - m[:, None]) / total[:, None]
    slope = tl.where(classes[None, :] == best[:, None], slope_best[:, None], P * mass[:, None] - y)
    tl.store(dS + rows[:, None] * C + classes[None, :], slope * (tl.load(grad) / B), mask=inside)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _cross_entropy(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, labels: Tensor, tau: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logits = launch_logits(features, log_prior, tau, mu_g=prototypes, prior_kind=LOG_PRIOR)
    assert logits.cos_g is not None
    B, C = logits.cos_g.shape
    row_loss, row_stats, loss = _empty(features, B), _empty(features, 6, B), _empty(features)
    config = configs.walk(C)
    launch(
        cross_entropy_kernel, (triton.cdiv(B, config.BM),),
        logits.cos_g, logits.scales[:C], logits.parts, labels, row_loss, row_stats,
        B, C, logits.tiles, *labels.stride(), 1.0 / tau,
        reads=(logits.cos_g, logits.scales[:C], logits.parts, labels), writes=(row_loss, row_stats),
        BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    launch(mean_kernel, (1,), row_loss, loss, B, reads=(row_loss,), writes=(loss,), BM=1024)
    return loss, logits.cos_g, logits.scales, row_stats


def _cross_entropy_fake(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, labels: Tensor, tau: float
) -> tuple[Tensor, ...]:
    B, C = features.shape[0], prototypes.shape[0]
    empty = features.new_empty
    loss, row_stats = (empty(shape, dtype=torch.float32) for shape in ((), (6, B)))
    return loss, empty((B, C), dtype=torch.int32), empty((3 * C + B,), dtype=torch.float64), row_stats


def _cross_entropy_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    features, prototypes, log_prior, labels, ctx.tau = inputs
    ctx.prior_dtype = log_prior.dtype
    ctx.save_for_backward(features, prototypes, labels, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _cross_entropy_gradient(
    features: Tensor, prototypes: Tensor, labels: Tensor, cos: Tensor, scales: Tensor, row_stats: Tensor, grad: Tensor,
    tau: float, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    B, C = cos.shape
    dS, config = _empty(cos, B, C), configs.elementwise(C)
    launch(
        cross_entropy_slope_kernel, (triton.cdiv(B, config.BM), triton.cdiv(C, config.BN)),
        cos, scales[:C], labels, row_stats, grad, dS, B, C, *labels.stride(), 1.0 / tau,
        reads=(cos, scales[:C], labels, row_stats, grad), writes=(dS,),
        BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    return logit_gradients(features, prototypes, cos, dS, scales, tau, needs)


def _cross_entropy_backward(run: Any, ctx: Any, grad: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None, None
    needs = list(ctx.needs_input_grad[:3])
    return (*spread(run(*ctx.saved_tensors, grad, ctx.tau, needs), needs, ctx.prior_dtype), None, None)


_cross_entropy_op = Differentiable(
    "soft_cross_entropy", _cross_entropy, _cross_entropy_fake, _cross_entropy_setup,
    Operator("soft_cross_entropy_backward", _cross_entropy_gradient, gradient_fake), _cross_entropy_backward,
)  # fmt: skip


def soft_cross_entropy(
    features: Tensor,  # (B, D)
    prototypes: Tensor,  # (C, D)
    log_prior: Tensor,  # (C,)
    tau: float,
    labels: Tensor,  # (B, C), constants
) -> Tensor:
    """-(labels * torch.log_softmax(log_prior + cosine(features, prototypes) / tau, -1)).sum(1).mean(): Eqs. (7)-(9)."""
    check_pair(features, prototypes)
    shape = (features.shape[0], prototypes.shape[0])
    check_like("log_prior", log_prior, shape[1:], features.device)
    check_like("labels", labels, shape, features.device)
    check_tau(tau)
    loss: Tensor = _cross_entropy_op(features, prototypes, log_prior.contiguous(), labels.detach(), float(tau))[0]
    return loss
