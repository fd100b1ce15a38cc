"""Eqs. (5), (6), (10) and (2*) by themselves: rebalancing with its gradient, mixed labels, structure, shrinkage."""

from __future__ import annotations

from typing import Any, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_constant, check_float, check_labels, check_like
from fastget.kernels.columns import launch_column_sums
from fastget.kernels.launch import launch
from fastget.kernels.logits import log_prior_tile
from fastget.kernels.objective import head_totals
from fastget.kernels.wrap import Differentiable, Operator


@triton.jit
def inverse_root(colsum, classes, held):
    """1 / sqrt(colsum), 0 for a column of mass zero."""
    mass = tl.load(colsum + classes, mask=held, other=0.0).to(tl.float32)
    return tl.where(mass > 0, 1.0 / tl.sqrt(tl.where(mass > 0, mass, 1.0)), 0.0)


@triton.jit(do_not_specialize=["B"])
def rebalance_kernel(
    P,  # (B, C)
    colsum,  # (C,)
    Q,  # (B, C) out
    totals,  # (B,) out: sum_c P / sqrt(colsum)
    B, C, p_b, p_c,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """W = P / sqrt(colsum), 0 where colsum is; Q = W / sum_c W.  dP: rebalance_slope_kernel, rebalance_colsum_kernel."""
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    live = rows < B
    total = tl.zeros((BM,), tl.float32)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        held = classes < C
        at = P + rows[:, None] * p_b + classes[None, :].to(tl.int64) * p_c
        p = tl.load(at, mask=live[:, None] & held[None, :], other=0.0).to(tl.float32)
        total += tl.sum(p * inverse_root(colsum, classes, held)[None, :], 1)
    tl.store(totals + rows, total, mask=live)
    total = tl.where(total > 0, total, 1.0)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
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
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dP[b,c] = (dQ[b,c] - sum_c' Q dQ) / (sqrt(colsum_c) sum_c' W)."""
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    live = rows < B
    mean = tl.zeros((BM,), tl.float32)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        inside = live[:, None] & (classes < C)[None, :]
        q = tl.load(Q + rows[:, None] * C + classes[None, :], mask=inside, other=0.0)
        d = tl.load(dQ + rows[:, None] * dq_b + classes[None, :].to(tl.int64) * dq_c, mask=inside, other=0.0)
        mean += tl.sum(q * d, 1)
    total = tl.load(totals + rows, mask=live, other=1.0)
    mean = tl.where(total > 0, mean, 0.0)
    total = tl.where(total > 0, total, 1.0)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
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
    ADD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """d_colsum[c] = -sum_b P[b,c] dP[b,c] / (2 colsum_c); with ADD, colsum being P.sum(0), it is added to dP[:, c]."""
    classes = tl.program_id(0) * BN + tl.arange(0, BN)
    held = classes < C
    total = tl.zeros((BN,), tl.float32)
    for b0 in range(0, B, BM):
        rows = (b0 + tl.arange(0, BM)).to(tl.int64)
        inside = (rows < B)[:, None] & held[None, :]
        at = P + rows[:, None] * p_b + classes[None, :].to(tl.int64) * p_c
        p = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(p * tl.load(dP + rows[:, None] * C + classes[None, :], mask=inside, other=0.0), 0)
    mass = tl.load(colsum + classes, mask=held, other=0.0).to(tl.float32)
    slope = tl.where(mass > 0, -0.5 * total / tl.where(mass > 0, mass, 1.0), 0.0)
    tl.store(d_colsum + classes, slope, mask=held)
    if ADD:
        for b0 in range(0, B, BM):
            rows = (b0 + tl.arange(0, BM)).to(tl.int64)
            inside = (rows < B)[:, None] & held[None, :]
            at = dP + rows[:, None] * C + classes[None, :]
            tl.store(at, tl.load(at, mask=inside, other=0.0) + slope[None, :], mask=inside)


@triton.jit(do_not_specialize=["B"])
def mixed_labels_kernel(
    Q,  # (B, C)
    y_M,  # (B,) int64, read with HOT
    out,  # (B, C) out
    B, C, q_b, q_c, y_b, gamma_Q,
    HOT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """out[b,c] = (1 - gamma_Q) Q[b,c] + gamma_Q [y_b = c].  dQ = (1 - gamma_Q) dout: the same without HOT."""
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    classes = tl.program_id(1) * BN + tl.arange(0, BN)
    live = rows < B
    inside = live[:, None] & (classes < C)[None, :]
    at = Q + rows[:, None] * q_b + classes[None, :].to(tl.int64) * q_c
    mixed = (1.0 - gamma_Q) * tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if HOT:
        y = tl.load(y_M + rows * y_b, mask=live, other=-1)
        mixed += gamma_Q * (y[:, None] == classes[None, :]).to(tl.float32)
    tl.store(out + rows[:, None] * C + classes[None, :], mixed.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["B"])
def structure_kernel(
    Q, P,  # (B, C)
    losses,  # (blocks, 2) out: 0, and the block's sum of KL(Q || P)
    Q_parts,  # (blocks, C) out: the block's column sums of Q
    B, C, q_b, q_c, p_b, p_c,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """KL[b] = sum_c Q (log Q - log P) where Q > 0, and Q's column sums, of one block of rows. No gradient."""
    block = tl.program_id(0)
    rows = (block * BM + tl.arange(0, BM)).to(tl.int64)
    live = rows < B
    kl = tl.zeros((BM,), tl.float32)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        wide = classes[None, :].to(tl.int64)
        inside = live[:, None] & (classes < C)[None, :]
        q = tl.load(Q + rows[:, None] * q_b + wide * q_c, mask=inside, other=0.0).to(tl.float32)
        p = tl.load(P + rows[:, None] * p_b + wide * p_c, mask=inside, other=1.0).to(tl.float32)
        held = q > 0
        ratio = tl.log(tl.where(held, q, 1.0)) - tl.log(tl.where(held, p, 1.0))
        kl += tl.sum(q * ratio, 1)
        tl.store(Q_parts + block.to(tl.int64) * C + classes, tl.sum(q, 0), mask=classes < C)
    tl.store(losses + 2 * block, 0.0)
    tl.store(losses + 2 * block + 1, tl.sum(kl, 0))


@triton.jit(do_not_specialize=["blocks", "B"])
def structure_total_kernel(losses, Q_parts, out, blocks, B, C, BM: tl.constexpr, BN: tl.constexpr):
    """out = sum KL / B + sum_c Qbar_c log Qbar_c. One program."""
    _, structure = head_totals(losses, Q_parts, blocks, B, C, BM, BN)
    tl.store(out, structure)


@triton.jit
def shrink_kernel(pi, out, C, BN: tl.constexpr):  # pi (C,), out (C,)
    """out = pi^beta / sum_c pi^beta, beta = 1 - exp(H(pi)) / C. No gradient."""
    classes = tl.program_id(0) * BN + tl.arange(0, BN)
    held = classes < C
    tl.store(out + classes, tl.exp(log_prior_tile(pi, classes, held, C, 1, 0, BN)), mask=held)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


# --- Eq. (6) -----------------------------------------------------------------------------------


def _rebalance(P: Tensor, colsum: Optional[Tensor]) -> tuple[Tensor, Tensor, Tensor]:  # noqa: UP045
    B, C = P.shape
    mass = launch_column_sums(P) if colsum is None else launch_column_sums(colsum[None])
    Q, totals, config = _empty(P, B, C), _empty(P, B), configs.walk(C)
    launch(
        rebalance_kernel, (triton.cdiv(B, config.BM),), P, mass, Q, totals, B, C, *P.stride(),
        reads=(P, mass), writes=(Q, totals), BM=config.BM, BN=config.BN, num_warps=config.num_warps,
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
    dP, d_colsum, config = _empty(P, B, C), _empty(P, C), configs.walk(C)
    launch(
        rebalance_slope_kernel, (triton.cdiv(B, config.BM),), Q, dQ, mass, totals, dP, B, C, *dQ.stride(),
        reads=(Q, dQ, mass, totals), writes=(dP,), BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    config = configs.columns(B, C)
    launch(
        rebalance_colsum_kernel, (triton.cdiv(C, config.BN),), P, dP, mass, d_colsum, B, C, *P.stride(),
        reads=(P, dP, mass), writes=(d_colsum, dP if own else None),
        ADD=own, BM=config.BM, BN=config.BN, num_warps=config.num_warps,
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


# --- Eq. (10) ----------------------------------------------------------------------------------


def _mix(Q: Tensor, y_M: Tensor, gamma_Q: float) -> Tensor:
    return _launch_mix(Q, y_M, gamma_Q, torch.float32)


def _launch_mix(Q: Tensor, y_M: Tensor | None, gamma_Q: float, dtype: torch.dtype) -> Tensor:
    B, C = Q.shape
    out, config = torch.empty((B, C), dtype=dtype, device=Q.device), configs.elementwise(C)
    launch(
        mixed_labels_kernel, (triton.cdiv(B, config.BM), triton.cdiv(C, config.BN)),
        Q, Q if y_M is None else y_M, out, B, C, *Q.stride(), 0 if y_M is None else y_M.stride(0), gamma_Q,
        reads=(Q, y_M), writes=(out,),
        HOT=y_M is not None, BM=config.BM, BN=config.BN, num_warps=config.num_warps,
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


# --- Eqs. (5) and (2*) -------------------------------------------------------------------------


def _structure(Q: Tensor, P: Tensor) -> Tensor:
    (B, C), config = Q.shape, configs.objective(*Q.shape)
    blocks = triton.cdiv(B, config.BM)
    losses, Q_parts, out = _empty(Q, blocks, 2), _empty(Q, blocks, C), _empty(Q)
    launch(
        structure_kernel, (blocks,), Q, P, losses, Q_parts, B, C, *Q.stride(), *P.stride(),
        reads=(Q, P), writes=(losses, Q_parts), BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    config = configs.totals(C)
    launch(
        structure_total_kernel, (1,), losses, Q_parts, out, blocks, B, C,
        reads=(losses, Q_parts), writes=(out,), BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    return out


def _shrink(pi: Tensor) -> Tensor:
    out, BN = _empty(pi, len(pi)), configs.prior_tile(len(pi))
    launch(shrink_kernel, (triton.cdiv(len(pi), BN),), pi, out, len(pi), reads=(pi,), writes=(out,), BN=BN)
    return out


_structure_op = Operator("structure_loss", _structure, lambda Q, P: Q.new_empty((), dtype=torch.float32))
_shrink_op = Operator("shrink_prior", _shrink, lambda pi: pi.new_empty(pi.shape, dtype=torch.float32))


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
