"""Eq. (6) by itself, with the powers that (6') gives it, and with gradients."""

from __future__ import annotations

from typing import Any, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_float, check_like
from fastget.kernels.launch import empty, launch
from fastget.kernels.wrap import Differentiable, Operator
from fastget.reference import Number


@triton.jit
def log_weight(at, colsum, offs_c, mask, mask_c, of_mass, of_P):
    """of_P log P - of_mass log colsum, a tile; -inf for a P of 0 and in a column of mass zero. A NaN stays one."""
    p = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    mass = tl.load(colsum + offs_c, mask=mask_c, other=0.0).to(tl.float32)
    none = (p <= 0.0) | (mass <= 0.0)[None, :]
    weight = of_P * tl.log(tl.where(none, 1.0, p)) - of_mass * tl.log(tl.where(mass <= 0.0, 1.0, mass))[None, :]
    return tl.where(none, float("-inf"), weight)


@triton.jit(do_not_specialize=["B"])
def rebalance_kernel(
    P,  # (B, C)
    colsum,  # (C,)
    exponent, power,  # ()
    Q,  # (B, C) out
    log_totals,  # (B,) out: log sum_c W
    B, C, p_b, p_c,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """W = P^power / colsum^exponent, 0 where P or colsum is; Q = W / sum_c W.  dP: _gradient()."""
    offs_b = (tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)).to(tl.int64)
    mask_b = offs_b < B
    of_mass, of_P = tl.load(exponent), tl.load(power)
    m = tl.full((BLOCK_B,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_B,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        offs_c = c0 + tl.arange(0, BLOCK_C)
        mask_c = offs_c < C
        at = P + offs_b[:, None] * p_b + offs_c[None, :].to(tl.int64) * p_c
        weight = log_weight(at, colsum, offs_c, mask_b[:, None] & mask_c[None, :], mask_c, of_mass, of_P)
        higher = tl.maximum(m, tl.max(weight, 1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(m - safe) + tl.sum(tl.exp(weight - safe[:, None]), 1)
        m = higher
    log_total = tl.where(m == float("-inf"), 0.0, m) + tl.log(tl.where(total == 0.0, 1.0, total))
    tl.store(log_totals + offs_b, log_total, mask=mask_b)
    for c0 in range(0, C, BLOCK_C):
        offs_c = c0 + tl.arange(0, BLOCK_C)
        mask_c = offs_c < C
        mask = mask_b[:, None] & mask_c[None, :]
        at = P + offs_b[:, None] * p_b + offs_c[None, :].to(tl.int64) * p_c
        weight = log_weight(at, colsum, offs_c, mask, mask_c, of_mass, of_P)
        tl.store(Q + offs_b[:, None] * C + offs_c[None, :], tl.exp(weight - log_total[:, None]), mask=mask)


def _rebalance(
    P: Tensor, exponent: Tensor, power: Tensor,
    colsum: Optional[Tensor],  # noqa: UP045  (the form that every torch's schema inference reads)
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    B, C = P.shape
    mass = (P if colsum is None else colsum[None]).sum(0, dtype=torch.float32)  # a copy: no output is an input
    Q, log_totals, config = empty(P, B, C), empty(P, B), configs.walk(C)
    launch(
        rebalance_kernel, (triton.cdiv(B, config.BLOCK_B),), P, mass, exponent, power, Q, log_totals,
        B, C, *P.stride(), writes=(Q, log_totals), **vars(config),
    )  # fmt: skip
    return Q, log_totals, mass


def _fake(P: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    Q, log_totals, mass = (P.new_empty(s, dtype=torch.float32) for s in (P.shape, P.shape[:1], P.shape[1:]))
    return Q, log_totals, mass


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    P, exponent, power, colsum = inputs
    ctx.own, ctx.dtypes = colsum is None, (P.dtype, None if colsum is None else colsum.dtype)
    ctx.save_for_backward(P, exponent, power, *output)
    ctx.mark_non_differentiable(*output[1:])


def _gradient(
    P: Tensor, exponent: Tensor, power: Tensor, Q: Tensor, log_totals: Tensor, mass: Tensor, dQ: Tensor, own: bool
) -> tuple[Tensor, Tensor]:
    """Those to P and colsum, in PyTorch: no step takes them. `own`: colsum is P.sum(0), whose gradient is P's too.

    dP[b,c] = power (dQ[b,c] - sum_c' Q dQ) Q[b,c] / P[b,c], 0 where P is 0; d_colsum[c] = -exponent / power sum_b P dP
    / colsum[c].
    """
    P = P.float()
    there = (P > 0) & (mass > 0)
    log_share = (power - 1) * P.log() - exponent * mass.log() - log_totals[:, None]  # log Q / P, where Q may underflow
    dP = torch.where(there, power * (dQ - (Q * dQ).sum(1, keepdim=True)) * log_share.exp(), 0)
    d_colsum = torch.where(mass > 0, -exponent / power * (P * dP).sum(0) / mass, 0)
    return dP + d_colsum if own else dP, d_colsum


def _gradient_fake(P: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return P.new_empty(P.shape, dtype=torch.float32), P.new_empty(P.shape[1:], dtype=torch.float32)


def _backward(run: Any, ctx: Any, dQ: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    dP, d_colsum = run(*ctx.saved_tensors, dQ, ctx.own)
    return dP.to(ctx.dtypes[0]), None, None, None if ctx.own else d_colsum.to(ctx.dtypes[1])


_rebalance_op = Differentiable(
    "rebalance", _rebalance, _fake, _setup, Operator("rebalance_backward", _gradient, _gradient_fake), _backward
)


def rebalance(P: Tensor, colsum: Tensor | None = None, exponent: Number = 0.5, power: Number = 1.0) -> Tensor:
    """reference.rebalance(P, colsum, exponent, power): Eq. (6), P^power / colsum^exponent, rows renormalised.

    `colsum` is over the global batch; None: over these rows. `exponent` and `power` are constants."""
    check_float("P", P, 2)
    if colsum is not None:
        check_like("colsum", colsum, (P.shape[1],), P.device)
    powers = (torch.as_tensor(x, dtype=torch.float32, device=P.device).detach() for x in (exponent, power))
    Q: Tensor = _rebalance_op(P, *powers, colsum)[0]
    return Q
