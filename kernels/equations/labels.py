"""Eqs. (10), (5), (2*), (2') and (6') by themselves: mixed labels with their gradient, structure, what a prior becomes
and what its spread does to the rebalancing."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_constant, check_float, check_labels, check_like
from fastget.kernels.launch import empty, launch
from fastget.kernels.objective import structure
from fastget.kernels.prior import SHRUNK, cap_form, faded, log_prior_tile
from fastget.kernels.wrap import Differentiable, Operator


@triton.jit(do_not_specialize=["B"])
def mixed_labels_kernel(
    Q,  # (B, C)
    y_M,  # (B,) int64; None: for the gradient
    out,  # (B, C) out
    B, C, q_b, q_c, y_b, gamma_Q,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[b,c] = (1 - gamma_Q) Q[b,c] + gamma_Q [y_b = c].  dQ = (1 - gamma_Q) dout: the same without y_M."""
    rows = (tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)).to(tl.int64)
    classes = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    live = rows < B
    inside = live[:, None] & (classes < C)[None, :]
    at = Q + rows[:, None] * q_b + classes[None, :].to(tl.int64) * q_c
    mixed = (1.0 - gamma_Q) * tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if y_M is not None:
        y = tl.load(y_M + rows * y_b, mask=live, other=-1)
        mixed += gamma_Q * (y[:, None] == classes[None, :]).to(tl.float32)
    tl.store(out + rows[:, None] * C + classes[None, :], mixed.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["B"])
def structure_kernel(
    Q, P,  # (B, C)
    kl_parts,  # (blocks,) out: the block's sum of KL(Q || P)
    Q_parts,  # (blocks, C) out: the block's column sums of Q
    B, C, q_b, q_c, p_b, p_c,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """KL[b] = sum_c Q (log Q - log P) where Q > 0, and Q's column sums, of one block of rows. No gradient."""
    block = tl.program_id(0)
    rows = (block * BLOCK_B + tl.arange(0, BLOCK_B)).to(tl.int64)
    live = rows < B
    kl = tl.zeros((BLOCK_B,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        wide = classes[None, :].to(tl.int64)
        inside = live[:, None] & (classes < C)[None, :]
        q = tl.load(Q + rows[:, None] * q_b + wide * q_c, mask=inside, other=0.0).to(tl.float32)
        p = tl.load(P + rows[:, None] * p_b + wide * p_c, mask=inside, other=1.0).to(tl.float32)
        held = q > 0
        ratio = tl.log(tl.where(held, q, 1.0)) - tl.log(tl.where(held, p, 1.0))
        kl += tl.sum(q * ratio, 1)
        tl.store(Q_parts + block.to(tl.int64) * C + classes, tl.sum(q, 0), mask=classes < C)
    tl.store(kl_parts + block, tl.sum(kl, 0))


@triton.jit(do_not_specialize=["blocks", "B"])
def structure_total_kernel(kl_parts, Q_parts, out, blocks, B, C, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr):
    """out = sum KL / B + sum_c Qbar_c log Qbar_c. One program."""
    tl.store(out, structure(kl_parts, Q_parts, blocks, B, C, BLOCK_B, BLOCK_C))


@triton.jit
def prior_kernel(pi, out, C, FORM: tl.constexpr, BLOCK_C: tl.constexpr):  # pi (C,), out (C,)
    """out = what Eq. (2*) or (2') puts in pi's place. No gradient."""
    classes = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    held = classes < C
    tl.store(out + classes, tl.exp(log_prior_tile(pi, classes, held, C, FORM, False, BLOCK_C)), mask=held)


@triton.jit
def exponent_kernel(pi, out, C, BLOCK_C: tl.constexpr):  # pi (C,), out ()
    """out = the power of the column sums by Eq. (6'). One program. No gradient."""
    tl.store(out, faded(pi, C, BLOCK_C))


# --- Eq. (10) ----------------------------------------------------------------------------------


def _mix(Q: Tensor, y_M: Tensor, gamma_Q: float) -> Tensor:
    return _launch_mix(Q, y_M, gamma_Q, torch.float32)


def _launch_mix(Q: Tensor, y_M: Tensor | None, gamma_Q: float, dtype: torch.dtype) -> Tensor:
    B, C = Q.shape
    out, config = torch.empty((B, C), dtype=dtype, device=Q.device), configs.elementwise(C)
    launch(
        mixed_labels_kernel, (triton.cdiv(B, config.BLOCK_B), triton.cdiv(C, config.BLOCK_C)),
        Q, y_M, out, B, C, *Q.stride(), 0 if y_M is None else y_M.stride(0), gamma_Q,
        reads=(Q, y_M), writes=(out,), **vars(config),
    )  # fmt: skip
    return out


def _mix_gradient(grad: Tensor, like: Tensor, gamma_Q: float) -> Tensor:
    return _launch_mix(grad, None, gamma_Q, like.dtype)


def _mix_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    Q, _, ctx.gamma_Q = inputs
    ctx.save_for_backward(Q)


def _mix_backward(run: Any, ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return run(grad, *ctx.saved_tensors, ctx.gamma_Q), None, None


_mix_op = Differentiable(
    "mixed_labels", _mix, lambda Q, y_M, gamma_Q: Q.new_empty(Q.shape, dtype=torch.float32), _mix_setup,
    Operator("mixed_labels_backward", _mix_gradient, lambda grad, like, gamma_Q: like.new_empty(like.shape)),
    _mix_backward,
)  # fmt: skip


def mixed_labels(
    Q: Tensor,  # (B, C)
    y_M: Tensor,  # (B,) int64
    gamma_Q: float,
) -> Tensor:
    """(1 - gamma_Q) * Q + gamma_Q * one_hot(y_M): Eq. (10). (B, C)."""
    check_float("Q", Q, 2)
    check_labels("y_M", y_M, Q.shape[0], Q.device)
    labels: Tensor = _mix_op(Q, y_M, float(gamma_Q))
    return labels


# --- Eqs. (5), (2*), (2') and (6') -------------------------------------------------------------------------


def _structure(Q: Tensor, P: Tensor) -> Tensor:
    (B, C), config = Q.shape, configs.objective(*Q.shape)
    blocks = triton.cdiv(B, config.BLOCK_B)
    parts, out = (empty(Q, blocks), empty(Q, blocks, C)), empty(Q)
    launch(
        structure_kernel, (blocks,), Q, P, *parts, B, C, *Q.stride(), *P.stride(),
        reads=(Q, P), writes=parts, **vars(config),
    )  # fmt: skip
    launch(
        structure_total_kernel, (1,), *parts, out, blocks, B, C,
        reads=parts, writes=(out,), **vars(configs.totals(B, C)),
    )  # fmt: skip
    return out


def _launch_prior(pi: Tensor, form: int) -> Tensor:
    C, out = len(pi), empty(pi, len(pi))
    block = configs.prior_block(C)
    launch(prior_kernel, (triton.cdiv(C, block),), pi, out, C, reads=(pi,), writes=(out,), FORM=form, BLOCK_C=block)
    return out


def _shrink(pi: Tensor) -> Tensor:
    return _launch_prior(pi, SHRUNK.value)


def _cap(pi: Tensor, gate: bool) -> Tensor:
    return _launch_prior(pi, cap_form(gate))


def _exponent(pi: Tensor) -> Tensor:
    out, block = empty(pi), configs.prior_block(len(pi))
    launch(exponent_kernel, (1,), pi, out, len(pi), reads=(pi,), writes=(out,), BLOCK_C=block)
    return out


_structure_op = Operator("structure_loss", _structure, lambda Q, P: Q.new_empty((), dtype=torch.float32))
_shrink_op = Operator("shrink_prior", _shrink, lambda pi: pi.new_empty(pi.shape, dtype=torch.float32))
_cap_op = Operator("cap_prior", _cap, lambda pi, gate: pi.new_empty(pi.shape, dtype=torch.float32))
_exponent_op = Operator("rebalance_exponent", _exponent, lambda pi: pi.new_empty((), dtype=torch.float32))


def structure_loss(
    Q: Tensor,  # (B, C)
    P: Tensor,  # (B, C)
) -> Tensor:
    """(Q * (Q / P).log()).sum() / len(Q) + torch.xlogy(Q.mean(0), Q.mean(0)).sum(): Eq. (5), a metric: no gradient."""
    check_float("Q", Q, 2)
    check_like("P", P, tuple(Q.shape), Q.device)
    check_constant("structure_loss", Q, P)
    structure: Tensor = _structure_op(Q, P)
    return structure


def shrink_prior(
    pi: Tensor,  # (C,)
) -> Tensor:
    """pi**beta / (pi**beta).sum(), beta = 1 - entropy(pi).exp() / len(pi): Eq. (2*). (C,). No gradient."""
    check_float("pi", pi, 1)
    check_constant("shrink_prior", pi)
    shrunk: Tensor = _shrink_op(pi.contiguous())
    return shrunk


def cap_prior(
    pi: Tensor,  # (C,)
    gate: bool = False,  # (2")
) -> Tensor:
    """(2 * pi / (pi * pi).sum()).clamp_max(1) ** beta, renormalised, floored, renormalised: Eq. (2'), or with the gate
    (2"). (C,). No gradient."""
    check_float("pi", pi, 1)
    check_constant("cap_prior", pi)
    capped: Tensor = _cap_op(pi.contiguous(), gate)
    return capped


def rebalance_exponent(
    pi: Tensor,  # (C,)
) -> Tensor:
    """0.5 * ((entropy(pi).exp() / len(pi) - 0.65) / 0.2).clamp(0, 1): Eq. (6'). A scalar. No gradient."""
    check_float("pi", pi, 1)
    check_constant("rebalance_exponent", pi)
    exponent: Tensor = _exponent_op(pi.contiguous())
    return exponent
