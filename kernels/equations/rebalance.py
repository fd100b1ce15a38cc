"""Eq. (6) by itself, with its gradient."""

from __future__ import annotations

from typing import Any, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_float, check_like
from fastget.kernels.equations.columns import launch_column_sums
from fastget.kernels.launch import empty, launch
from fastget.kernels.tile import inverse_root
from fastget.kernels.wrap import Differentiable, Operator


@triton.jit(do_not_specialize=["B"])
def rebalance_kernel(
    P,  # (B, C)
    colsum,  # (C,)
    Q,  # (B, C) out
    totals,  # (B,) out: sum_c P / sqrt(colsum)
    B, C, p_b, p_c,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """W = P / sqrt(colsum), 0 where colsum is; Q = W / sum_c W.  dP: the two kernels after this one."""
    rows = (tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)).to(tl.int64)
    live = rows < B
    total = tl.zeros((BLOCK_B,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        held = classes < C
        at = P + rows[:, None] * p_b + classes[None, :].to(tl.int64) * p_c
        p = tl.load(at, mask=live[:, None] & held[None, :], other=0.0).to(tl.float32)
        total += tl.sum(p * inverse_root(colsum, classes, held)[None, :], 1)
    tl.store(totals + rows, total, mask=live)
    total = tl.where(total <= 0, 1.0, total)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        held = classes < C
        inside = live[:, None] & held[None, :]
        at = P + rows[:, None] * p_b + classes[None, :].to(tl.int64) * p_c
        p = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        q = p * inverse_root(colsum, classes, held)[None, :] / total[:, None]
        tl.store(Q + rows[:, None] * C + classes[None, :], q, mask=inside)


@triton.jit(do_not_specialize=["B"])
def rebalance_slope_kernel(
    Q,  # (B, C)
    dQ,  # (B, C)
    colsum,  # (C,)
    totals,  # (B,)
    dP,  # (B, C) out, colsum held fixed
    B, C, dq_b, dq_c,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dP[b,c] = (dQ[b,c] - sum_c' Q dQ) / (sqrt(colsum_c) sum_c' W)."""
    rows = (tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)).to(tl.int64)
    live = rows < B
    mean = tl.zeros((BLOCK_B,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        inside = live[:, None] & (classes < C)[None, :]
        q = tl.load(Q + rows[:, None] * C + classes[None, :], mask=inside, other=0.0)
        d = tl.load(dQ + rows[:, None] * dq_b + classes[None, :].to(tl.int64) * dq_c, mask=inside, other=0.0)
        mean += tl.sum(q * d, 1)
    total = tl.load(totals + rows, mask=live, other=1.0)
    mean = tl.where(total <= 0, 0.0, mean)
    total = tl.where(total <= 0, 1.0, total)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        held = classes < C
        inside = live[:, None] & held[None, :]
        d = tl.load(dQ + rows[:, None] * dq_b + classes[None, :].to(tl.int64) * dq_c, mask=inside, other=0.0)
        slope = (d - mean[:, None]) / total[:, None] * inverse_root(colsum, classes, held)[None, :]
        tl.store(dP + rows[:, None] * C + classes[None, :], slope, mask=inside)


@triton.jit(do_not_specialize=["B"])
def rebalance_colsum_kernel(
    P,  # (B, C)
    dP,  # (B, C); with ADD in place
    colsum,  # (C,)
    d_colsum,  # (C,) out
    B, C, p_b, p_c,
    ADD: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """d_colsum[c] = -sum_b P[b,c] dP[b,c] / (2 colsum_c); with ADD, colsum being P.sum(0), it is added to dP[:, c]."""
    classes = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    held = classes < C
    total = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        rows = (b0 + tl.arange(0, BLOCK_B)).to(tl.int64)
        inside = (rows < B)[:, None] & held[None, :]
        at = P + rows[:, None] * p_b + classes[None, :].to(tl.int64) * p_c
        p = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(p * tl.load(dP + rows[:, None] * C + classes[None, :], mask=inside, other=0.0), 0)
    mass = tl.load(colsum + classes, mask=held, other=0.0).to(tl.float32)
    slope = tl.where(mass <= 0, 0.0, -0.5 * total / tl.where(mass <= 0, 1.0, mass))
    tl.store(d_colsum + classes, slope, mask=held)
    if ADD:
        for b0 in range(0, B, BLOCK_B):
            rows = (b0 + tl.arange(0, BLOCK_B)).to(tl.int64)
            inside = (rows < B)[:, None] & held[None, :]
            at = dP + rows[:, None] * C + classes[None, :]
            tl.store(at, tl.load(at, mask=inside, other=0.0) + slope[None, :], mask=inside)


def _rebalance(P: Tensor, colsum: Optional[Tensor]) -> tuple[Tensor, Tensor, Tensor]:  # noqa: UP045
    B, C = P.shape
    mass = launch_column_sums(P) if colsum is None else launch_column_sums(colsum[None])
    Q, totals, config = empty(P, B, C), empty(P, B), configs.walk(C)
    launch(
        rebalance_kernel, (triton.cdiv(B, config.BLOCK_B),), P, mass, Q, totals, B, C, *P.stride(),
        reads=(P, mass), writes=(Q, totals), **vars(config),
    )  # fmt: skip
    return Q, totals, mass


def _rebalance_fake(P: Tensor, colsum: Tensor | None) -> tuple[Tensor, ...]:
    wide = P.new_empty
    return tuple(wide(s, dtype=torch.float32) for s in (P.shape, P.shape[:1], P.shape[1:]))


def _rebalance_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    P, colsum = inputs
    ctx.own, ctx.dtypes = colsum is None, (P.dtype, None if colsum is None else colsum.dtype)
    ctx.save_for_backward(P, *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _rebalance_gradient(
    P: Tensor, Q: Tensor, totals: Tensor, mass: Tensor, dQ: Tensor, own: bool
) -> tuple[Tensor, Tensor]:
    B, C = P.shape
    dP, d_colsum, config = empty(P, B, C), empty(P, C), configs.walk(C)
    launch(
        rebalance_slope_kernel, (triton.cdiv(B, config.BLOCK_B),), Q, dQ, mass, totals, dP, B, C, *dQ.stride(),
        reads=(Q, dQ, mass, totals), writes=(dP,), **vars(config),
    )  # fmt: skip
    config = configs.columns(B, C)
    launch(
        rebalance_colsum_kernel, (triton.cdiv(C, config.BLOCK_C),), P, dP, mass, d_colsum, B, C, *P.stride(),
        reads=(P, dP, mass), writes=(d_colsum, dP if own else None),
        ADD=own, **vars(config),
    )  # fmt: skip
    return dP, d_colsum


def _rebalance_gradient_fake(P: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return P.new_empty(P.shape, dtype=torch.float32), P.new_empty(P.shape[1:], dtype=torch.float32)


def _rebalance_backward(run: Any, ctx: Any, dQ: Tensor | None, *rest: Any) -> tuple[Tensor | None, Tensor | None]:
    if dQ is None:
        return None, None
    dP, d_colsum = run(*ctx.saved_tensors, dQ, ctx.own)
    return dP.to(ctx.dtypes[0]), d_colsum.to(ctx.dtypes[1]) if ctx.dtypes[1] is not None else None


_rebalance_op = Differentiable(
    "rebalance", _rebalance, _rebalance_fake, _rebalance_setup,
    Operator("rebalance_backward", _rebalance_gradient, _rebalance_gradient_fake), _rebalance_backward,
)  # fmt: skip


def rebalance(
    P: Tensor,  # (B, C)
    colsum: Tensor | None = None,  # (C,), over the global batch; None: over these rows
) -> Tensor:
    """(P / colsum.sqrt()) / (P / colsum.sqrt()).sum(1, keepdim=True): Eq. (6), a column of mass zero gives zeros."""
    check_float("P", P, 2)
    if colsum is not None:
        check_like("colsum", colsum, (P.shape[1],), P.device)
    Q: Tensor = _rebalance_op(P, colsum)[0]
    return Q
