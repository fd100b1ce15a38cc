"""The soft cross-entropy of Eqs. (7)-(9) by itself, with gradients."""

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
from fastget.kernels.objective import mean_of_parts
from fastget.kernels.tile import PART_G, ROW_STATS, first_best, load_row, merged_softmax, store_row
from fastget.kernels.wrap import Differentiable, Operator


@triton.jit(do_not_specialize=["B", "T"])
def cross_entropy_kernel(
    S,  # (B, C)
    parts,  # (PARTS, 2, T, B)
    labels,  # (B, C)
    row_loss,  # (B,) out
    row_stats,  # (ROW_STATS, B) out
    B, C, T, y_b, y_c,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """loss[b] = -sum_c y[b,c] log P[b,c].  dS = P sum_c y - y: cross_entropy_slope_kernel.

    The slope at a likeliest class of P over 1/2 is minus the sum of all others: P - y cancels when P is near 1.
    """
    rows = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    live = rows < B
    m, total = merged_softmax(parts, PART_G, rows, live, B, T)
    log_total = tl.log(total)
    rows = rows.to(tl.int64)
    row, row_y = S + rows[:, None] * C, labels + rows[:, None] * y_b
    given = tl.zeros((BLOCK_B, BLOCK_C), tl.float32)  # summed after the loop: Triton up to 3.8 fails inside it
    peak = tl.full((BLOCK_B,), float("-inf"), tl.float32)
    best = tl.zeros((BLOCK_B,), tl.int32)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        held = classes < C
        inside = live[:, None] & held[None, :]
        logits = tl.load(row + classes[None, :], mask=inside, other=float("-inf"))
        highest, column = first_best(logits, classes, held[None, :], C - 1)
        best = tl.where(highest > peak, column, best)
        peak = tl.maximum(peak, highest)
        given += tl.load(row_y + classes[None, :].to(tl.int64) * y_c, mask=inside, other=0.0).to(tl.float32)
    mass = tl.sum(given, 1)
    loss = tl.zeros((BLOCK_B,), tl.float32)
    others = tl.zeros((BLOCK_B,), tl.float32)
    own = tl.zeros((BLOCK_B,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        inside = live[:, None] & (classes < C)[None, :]
        logits = tl.load(row + classes[None, :], mask=inside, other=0.0)
        log_P = (logits - m[:, None]) - log_total[:, None]
        y = tl.load(row_y + classes[None, :].to(tl.int64) * y_c, mask=inside, other=0.0).to(tl.float32)
        loss -= tl.sum(tl.where(y == 0, 0.0, y * log_P), 1)
        slope = tl.where(inside, tl.exp(log_P) * mass[:, None] - y, 0.0)
        likeliest = classes[None, :] == best[:, None]
        others += tl.sum(tl.where(likeliest, 0.0, slope), 1)
        own += tl.sum(tl.where(likeliest, slope, 0.0), 1)
    tl.store(row_loss + rows, loss, mask=live)
    store_row(row_stats, rows, live, B, m, total, mass, best, tl.where(total < 2, -others, own))


@triton.jit(do_not_specialize=["B"])
def mean_kernel(x, out, B, BLOCK_B: tl.constexpr):  # x (B,), out ()
    """out = sum_b x[b] / B, in order. One program."""
    tl.store(out, mean_of_parts(x, B, B, BLOCK_B))


@triton.jit(do_not_specialize=["B"])
def cross_entropy_slope_kernel(
    S,  # (B, C)
    labels,  # (B, C)
    row_stats,  # (ROW_STATS, B)
    grad,  # ()
    dS,  # (B, C) out
    B, C, y_b, y_c,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dS[b,c] = grad (P[b,c] sum_c' y[b,c'] - y[b,c]) / B."""
    rows = (tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)).to(tl.int64)
    classes = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    live = rows < B
    inside = live[:, None] & (classes < C)[None, :]
    m, total, mass, best, slope_best = load_row(row_stats, rows, live, B)
    at = rows[:, None] * C + classes[None, :]
    at_y = labels + rows[:, None] * y_b + classes[None, :].to(tl.int64) * y_c
    y = tl.load(at_y, mask=inside, other=0.0).to(tl.float32)
    P = tl.exp(tl.load(S + at, mask=inside, other=0.0) - m) / total
    slope = tl.where(classes[None, :] == best, slope_best, P * mass - y)
    tl.store(dS + at, slope * (tl.load(grad) / B), mask=inside)


def _cross_entropy(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, labels: Tensor, tau: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    S, parts, *scales = one_head(features, prototypes, log_prior, tau)
    B, C = S.shape
    row_loss, row_stats, loss = empty(features, B), empty(features, ROW_STATS, B), empty(features)
    config = configs.walk(C)
    launch(
        cross_entropy_kernel, (triton.cdiv(B, config.BLOCK_B),),
        S, parts, labels, row_loss, row_stats, B, C, parts.shape[2], *labels.stride(),
        reads=(S, parts, labels), writes=(row_loss, row_stats), **vars(config),
    )  # fmt: skip
    launch(mean_kernel, (1,), row_loss, loss, B, reads=(row_loss,), writes=(loss,), BLOCK_B=1024)
    return loss, S, scales[0], scales[1], scales[2], row_stats


def _cross_entropy_fake(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, labels: Tensor, tau: float
) -> tuple[Tensor, ...]:
    loss, row_stats = (features.new_empty(s, dtype=torch.float32) for s in ((), (ROW_STATS, features.shape[0])))
    return (loss, *one_head_fake(features, prototypes), row_stats)


def _cross_entropy_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    features, prototypes, log_prior, labels, ctx.tau = inputs
    ctx.prior_dtype = log_prior.dtype
    ctx.save_for_backward(features, prototypes, labels, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _cross_entropy_gradient(
    features: Tensor, prototypes: Tensor, labels: Tensor, S: Tensor, log_prior: Tensor, norm: Tensor, norm_p: Tensor,
    row_stats: Tensor, grad: Tensor, tau: float, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    B, C = S.shape
    dS, config = empty(S, B, C), configs.elementwise(C)
    launch(
        cross_entropy_slope_kernel, (triton.cdiv(B, config.BLOCK_B), triton.cdiv(C, config.BLOCK_C)),
        S, labels, row_stats, grad, dS, B, C, *labels.stride(),
        reads=(S, labels, row_stats, grad), writes=(dS,), **vars(config),
    )  # fmt: skip
    return logit_gradients(features, prototypes, S, log_prior, norm, norm_p, dS, tau, needs)


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
