"""The soft cross-entropy of Eqs. (7)-(9) by itself, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_like, check_pair, check_tau
from fastget.kernels.launch import launch
from fastget.kernels.logits import LOG_PRIOR, launch_logits
from fastget.kernels.posterior import gradient_fake, logit_gradients, spread
from fastget.kernels.tile import merged_softmax
from fastget.kernels.wrap import Differentiable, Operator


@triton.jit(do_not_specialize=["B", "T"])
def cross_entropy_kernel(
    S,  # (B, C)
    parts,  # (slots, T, B)
    labels,  # (B, C)
    row_loss,  # (B,) out
    row_stats,  # (3, B) out: max and sum of exponentials of P, sum of the labels
    B, C, T, y_b, y_c,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """loss[b] = -sum_c y[b,c] log P[b,c].  dS = P sum_c y - y: cross_entropy_slope_kernel."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    live = rows < B
    m, total = merged_softmax(parts, 0, rows, live, B, T)
    log_total = tl.log(total)
    loss = tl.zeros((BM,), tl.float32)
    mass = tl.zeros((BM,), tl.float32)
    rows = rows.to(tl.int64)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        inside = live[:, None] & (classes < C)[None, :]
        logits = tl.load(S + rows[:, None] * C + classes[None, :], mask=inside, other=0.0)
        at = labels + rows[:, None] * y_b + classes[None, :].to(tl.int64) * y_c
        y = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        loss -= tl.sum(tl.where(y == 0, 0.0, y * ((logits - m[:, None]) - log_total[:, None])), 1)
        mass += tl.sum(y, 1)
    tl.store(row_loss + rows, loss, mask=live)
    tl.store(row_stats + rows, m, mask=live)
    tl.store(row_stats + tl.cast(B, tl.int64) + rows, total, mask=live)
    tl.store(row_stats + 2 * tl.cast(B, tl.int64) + rows, mass, mask=live)


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
    S,  # (B, C)
    labels,  # (B, C)
    row_stats,  # (3, B)
    grad,  # ()
    dS,  # (B, C) out
    B, C, y_b, y_c,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dS[b,c] = grad (P[b,c] sum_c' y[b,c'] - y[b,c]) / B."""
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    classes = tl.program_id(1) * BN + tl.arange(0, BN)
    live = rows < B
    inside = live[:, None] & (classes < C)[None, :]
    m = tl.load(row_stats + rows, mask=live, other=0.0)
    total = tl.load(row_stats + tl.cast(B, tl.int64) + rows, mask=live, other=1.0)
    mass = tl.load(row_stats + 2 * tl.cast(B, tl.int64) + rows, mask=live, other=0.0)
    at = rows[:, None] * C + classes[None, :]
    logits = tl.load(S + at, mask=inside, other=0.0)
    at_y = labels + rows[:, None] * y_b + classes[None, :].to(tl.int64) * y_c
    y = tl.load(at_y, mask=inside, other=0.0).to(tl.float32)
    P = tl.exp(logits - m[:, None]) / total[:, None]
    tl.store(dS + at, (P * mass[:, None] - y) * (tl.load(grad) / B), mask=inside)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _cross_entropy(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, labels: Tensor, tau: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logits = launch_logits(features, log_prior, tau, mu_g=prototypes, prior_kind=LOG_PRIOR)
    assert logits.S_g is not None
    B, C = logits.S_g.shape
    row_loss, row_stats, loss = _empty(features, B), _empty(features, 3, B), _empty(features)
    config = configs.walk(C)
    launch(
        cross_entropy_kernel, (triton.cdiv(B, config.BM),),
        logits.S_g, logits.parts, labels, row_loss, row_stats, B, C, logits.tiles, *labels.stride(),
        reads=(logits.S_g, logits.parts, labels), writes=(row_loss, row_stats),
        BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    launch(mean_kernel, (1,), row_loss, loss, B, reads=(row_loss,), writes=(loss,), BM=1024)
    return loss, logits.S_g, logits.scales, row_stats


def _cross_entropy_fake(
    features: Tensor, prototypes: Tensor, log_prior: Tensor, labels: Tensor, tau: float
) -> tuple[Tensor, ...]:
    B, C = features.shape[0], prototypes.shape[0]
    shapes: tuple[tuple[int, ...], ...] = ((), (B, C), (3 * C + B,), (3, B))
    return tuple(features.new_empty(shape, dtype=torch.float32) for shape in shapes)


def _cross_entropy_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    features, prototypes, log_prior, labels, ctx.tau = inputs
    ctx.prior_dtype = log_prior.dtype
    ctx.save_for_backward(features, prototypes, labels, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _cross_entropy_gradient(
    features: Tensor, prototypes: Tensor, labels: Tensor, S: Tensor, scales: Tensor, row_stats: Tensor, grad: Tensor,
    tau: float, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    B, C = S.shape
    dS, config = _empty(S, B, C), configs.elementwise(C)
    launch(
        cross_entropy_slope_kernel, (triton.cdiv(B, config.BM), triton.cdiv(C, config.BN)),
        S, labels, row_stats, grad, dS, B, C, *labels.stride(),
        reads=(S, labels, row_stats, grad), writes=(dS,), BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    return logit_gradients(features, prototypes, S, dS, scales, tau, needs)


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
