"""C and the loss of both heads, in two launches; its gradient is kernels/backward.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.backward import column_surplus, column_unit, column_weight, label_slope, launch_backward
from fastget.kernels.expectation import Expectation
from fastget.kernels.launch import launch
from fastget.kernels.tile import BROKEN, finite_max, first_best, largest, merge, row_logits
from fastget.kernels.wrap import Differentiable, Operator


class Objective(NamedTuple):
    """Eq. (11)'s target term and what is logged of it: scalars, means over this rank's rows."""

    loss: Tensor  # loss_g + loss_f
    loss_g: Tensor
    loss_f: Tensor
    structure_g: Tensor  # Eq. (5), no gradient
    structure_f: Tensor


@triton.jit
def head_rows(
    cos, log_priors, colsum, y, row_stats, losses, Q_parts, rows, live, B, C, gamma, inv_tau, unit, BN: tl.constexpr,
):  # fmt: skip
    """One head, one block of rows: max and sum of exponentials of P and Q, the loss, KL(Q || P), Q's column sums.

    Also the slope at the likeliest class: where its P is over 1/2, as minus the sum of all others, which it equals.
    P - y cancels there when P is near 1, and the others' slopes are small numbers that do not.
    """
    row = cos + rows[:, None].to(tl.int64) * C
    top = tl.full(rows.shape, BROKEN, tl.float32)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        inside = live[:, None] & (classes < C)[None, :]
        top = tl.maximum(top, largest(tl.load(row + classes[None, :], mask=inside, other=BROKEN), inside))
    m = tl.full(rows.shape, float("-inf"), tl.float32)
    best = tl.zeros(rows.shape, tl.int32)
    total = tl.zeros(rows.shape, tl.float32)
    m_Q = m
    total_Q = total
    drift = total  # sum of exponentials times their columns' surplus
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        held = classes < C
        inside = live[:, None] & held[None, :]
        logits = row_logits(row, log_priors, classes, held, inside, top, inv_tau)
        logits = tl.where(inside, logits, float("-inf"))
        peak, column = first_best(logits, classes, held[None, :], C - 1)
        best = tl.where(peak > m, column, best)
        higher = tl.maximum(m, peak)
        fade, masses = tl.exp(m - finite_max(higher)), tl.exp(logits - finite_max(higher)[:, None])
        total = total * fade + tl.sum(masses, 1)
        drift = drift * fade + tl.sum(masses * column_surplus(colsum, classes, held, unit)[None, :], 1)
        m = higher
        logits += column_weight(colsum, classes, held)[None, :]
        peak = tl.max(logits, 1)
        m_Q, total_Q = merge(m_Q, total_Q, peak, tl.sum(tl.exp(logits - finite_max(peak)[:, None]), 1))
    m, m_Q = finite_max(m), finite_max(m_Q)
    total, total_Q = tl.where(live, total, 1.0), tl.where(live, total_Q, 1.0)
    mean = drift / total
    wide_B = tl.cast(B, tl.int64)
    tl.store(row_stats + rows, m, mask=live)
    tl.store(row_stats + wide_B + rows, total, mask=live)
    tl.store(row_stats + 2 * wide_B + rows, m_Q, mask=live)
    tl.store(row_stats + 3 * wide_B + rows, total_Q, mask=live)
    tl.store(row_stats + 4 * wide_B + rows, best.to(tl.float32), mask=live)
    tl.store(row_stats + 6 * wide_B + rows, top, mask=live)
    tl.store(row_stats + 7 * wide_B + rows, mean, mask=live)

    log_total, log_total_Q = tl.log(total)[:, None], tl.log(total_Q)[:, None]
    loss = tl.zeros(rows.shape, tl.float32)
    kl = tl.zeros(rows.shape, tl.float32)
    others = tl.zeros(rows.shape, tl.float32)
    own = tl.zeros(rows.shape, tl.float32)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        held = classes < C
        inside = live[:, None] & held[None, :]
        logits = row_logits(row, log_priors, classes, held, inside, top, inv_tau)
        log_P = (logits - m[:, None]) - log_total
        log_Q = (logits + column_weight(colsum, classes, held)[None, :] - m_Q[:, None]) - log_total_Q
        Q = tl.where(inside, tl.exp(log_Q), 0.0)
        hot = (y[:, None] == classes[None, :]) & inside
        label = (1.0 - gamma) * Q + gamma * hot.to(tl.float32)
        surplus = column_surplus(colsum, classes, held, unit)[None, :]
        slope = tl.where(inside, label_slope(tl.exp(log_P), Q, surplus, mean[:, None], hot, gamma), 0.0)
        likeliest = classes[None, :] == best[:, None]
        others += tl.sum(tl.where(likeliest, 0.0, slope), 1)
        own += tl.sum(tl.where(likeliest, slope, 0.0), 1)
        loss -= tl.sum(tl.where(label == 0, 0.0, label * log_P), 1)  # a NaN stays one: it must be seen
        kl += tl.sum(tl.where(Q == 0, 0.0, Q * (log_Q - log_P)), 1)
        tl.store(Q_parts + classes, tl.sum(Q, 0), mask=held)
    tl.store(row_stats + 5 * wide_B + rows, tl.where(total < 2, -others, own), mask=live)
    tl.store(losses, tl.sum(tl.where(live, loss, 0.0), 0))
    tl.store(losses + 1, tl.sum(tl.where(live, kl, 0.0), 0))


@triton.jit(do_not_specialize=["B"])
def objective_kernel(
    cos_g, cos_f,  # (B, C) int32
    log_prior,  # (C,) float64
    colsum_g, colsum_f,  # (C,)
    y_M,  # (B,) int64
    row_stats,  # (16, B) out, of g then of f: max and sum of exponentials of P, of Q, likeliest class, slope there,
    #             largest cosine, sum_c P surplus
    losses,  # (2, blocks, 2) out: each block's sum of the rows' losses, and of KL(Q || P)
    Q_parts,  # (2, blocks, C) out: each block's column sums of Q
    B, C, gamma_g, gamma_f, inv_tau, unit,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Q = softmax(S - 0.5 log colsum); y = (1 - gamma) Q + gamma onehot(y_M); row loss = -sum_c y log softmax(S).

    d loss / dS = P - y, Q and y being constants: kernels/backward.py.
    Differs from Eq. (6): Q is taken from the logits and not from P, the same number, so that a P that underflows does
    no harm. Each program owns a block of rows of one head.
    """
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    rows = block * BM + tl.arange(0, BM)
    live = rows < B
    y = tl.load(y_M + rows, mask=live, other=-1)
    if tl.program_id(1) == 0:
        at = Q_parts + block.to(tl.int64) * C
        head_rows(
            cos_g, log_prior, colsum_g, y, row_stats, losses + 2 * block, at,
            rows, live, B, C, gamma_g, inv_tau, unit, BN,
        )  # fmt: skip
    else:
        at = Q_parts + (blocks + block).to(tl.int64) * C
        head_rows(
            cos_f, log_prior, colsum_f, y, row_stats + 8 * tl.cast(B, tl.int64), losses + 2 * (blocks + block), at,
            rows, live, B, C, gamma_f, inv_tau, unit, BN,
        )  # fmt: skip


@triton.jit
def head_totals(losses, Q_parts, blocks, B, C, BM: tl.constexpr, BN: tl.constexpr):
    """Mean loss and Eq. (5) of one head, from the blocks' sums in order."""
    loss = tl.zeros((BM,), tl.float32)
    kl = tl.zeros((BM,), tl.float32)
    for b0 in range(0, blocks, BM):
        block = b0 + tl.arange(0, BM)
        loss += tl.load(losses + 2 * block, mask=block < blocks, other=0.0)
        kl += tl.load(losses + 2 * block + 1, mask=block < blocks, other=0.0)
    entropy = tl.zeros((BN,), tl.float32)
    for c0 in range(0, C, BN):
        classes = c0 + tl.arange(0, BN)
        mass = tl.zeros((BN,), tl.float32)
        for b0 in range(0, blocks, BM):
            block = b0 + tl.arange(0, BM)
            at = Q_parts + block[:, None].to(tl.int64) * C + classes[None, :]
            mass += tl.sum(tl.load(at, mask=(block < blocks)[:, None] & (classes < C)[None, :], other=0.0), 0)
        mean = mass / B
        entropy += mean * tl.log(tl.where(mean == 0, 1.0, mean))
    return tl.sum(loss, 0) / B, tl.sum(kl, 0) / B + tl.sum(entropy, 0)


@triton.jit(do_not_specialize=["blocks", "B"])
def totals_kernel(
    losses,  # (2, blocks, 2)
    Q_parts,  # (2, blocks, C)
    loss, loss_g, loss_f, structure_g, structure_f,  # () out
    blocks, B, C,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """loss_h = sum of the rows' losses / B; structure_h = sum KL / B + sum_c Qbar_c log Qbar_c. One program."""
    total_g, metric_g = head_totals(losses, Q_parts, blocks, B, C, BM, BN)
    total_f, metric_f = head_totals(losses + 2 * blocks, Q_parts + tl.cast(blocks, tl.int64) * C, blocks, B, C, BM, BN)
    tl.store(loss, total_g + total_f)
    tl.store(loss_g, total_g)
    tl.store(loss_f, total_f)
    tl.store(structure_g, metric_g)
    tl.store(structure_f, metric_f)


def _forward(
    features: Tensor,
    mu_g: Tensor,
    mu_f: Tensor,
    cos_g: Tensor,
    cos_f: Tensor,
    colsum_g: Tensor,
    colsum_f: Tensor,
    y_M: Tensor,
    scales: Tensor,
    tau: float,
    gamma_g: float,
    gamma_f: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, C = cos_g.shape
    config = configs.objective(B, C)
    blocks = triton.cdiv(B, config.BM)

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=cos_g.device)

    row_stats, losses, Q_parts = empty(16, B), empty(2, blocks, 2), empty(2, blocks, C)
    launch(
        objective_kernel,
        (blocks, 2),
        cos_g, cos_f, scales[:C], colsum_g, colsum_f, y_M, row_stats, losses, Q_parts,
        B, C, gamma_g, gamma_f, 1.0 / tau, column_unit(B, C),
        reads=(cos_g, cos_f, scales[:C], colsum_g, colsum_f, y_M),
        writes=(row_stats, losses, Q_parts),
        BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    out = (empty(), empty(), empty(), empty(), empty())
    config = configs.totals(C)
    launch(
        totals_kernel,
        (1,),
        losses, Q_parts, *out, blocks, B, C,
        reads=(losses, Q_parts),
        writes=out,
        BM=config.BM, BN=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    return (*out, row_stats)


def _fake(features: Tensor, mu_g: Tensor, mu_f: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(features.new_empty(s, dtype=torch.float32) for s in (*[()] * 5, (16, features.shape[0])))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, tau, gamma_g, gamma_f = inputs
    ctx.save_for_backward(*tensors, output[5])
    ctx.numbers = (tau, gamma_g, gamma_f)
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def _gradient(
    features: Tensor,
    mu_g: Tensor,
    mu_f: Tensor,
    cos_g: Tensor,
    cos_f: Tensor,
    colsum_g: Tensor,
    colsum_f: Tensor,
    y_M: Tensor,
    scales: Tensor,
    row_stats: Tensor,
    numbers: list[float],
    grads: list[Tensor],
    has: list[bool],
    needs: list[bool],
) -> list[Tensor]:
    """The gradients that `needs` asks for and that have a path, in the order features, mu_g, mu_f."""
    arrived = iter(grads)
    tau, gamma_g, gamma_f = numbers
    grad_loss, grad_g, grad_f = (next(arrived) if there else None for there in has)
    found = launch_backward(
        features, mu_g, mu_f, cos_g, cos_f, scales, tau,
        needs=(needs[0], needs[1], needs[2]), colsums=(colsum_g, colsum_f), y_M=y_M, row_stats=row_stats,
        gammas=(gamma_g, gamma_f), grads=(grad_loss, grad_g, grad_f),
    )  # fmt: skip
    return [d for d in found if d is not None]


def _gradient_fake(features: Tensor, mu_g: Tensor, mu_f: Tensor, *rest: Any) -> list[Tensor]:
    needs = _paths(rest[-2], rest[-1])
    return [torch.empty_like(t, memory_format=torch.contiguous_format)
            for t, need in zip((features, mu_g, mu_f), needs, strict=True) if need]  # fmt: skip


def _paths(has: list[bool], needs: list[bool]) -> tuple[bool, bool, bool]:
    """Which gradients exist: asked for, and reached by an incoming one."""
    g, f = has[0] or has[1], has[0] or has[2]
    return needs[0] and (g or f), needs[1] and g, needs[2] and f


def _backward(run: Any, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, row_stats = ctx.saved_tensors
    has = [g is not None for g in grads[:3]]
    needs = list(ctx.needs_input_grad[:3])
    found: list[Tensor | None] = [None, None, None]
    paths = _paths(has, needs)
    if any(paths):
        arrived = [g for g in grads[:3] if g is not None]
        made = iter(run(*tensors, row_stats, list(ctx.numbers), arrived, has, needs))
        found = [next(made) if path else None for path in paths]
    return (*found, *[None] * 9)


_objective = Differentiable(
    "objective", _forward, _fake, _setup, Operator("objective_backward", _gradient, _gradient_fake), _backward
)


def objective(
    e: Expectation,
    gamma_g: float,  # weight of onehot(y_M) in the labels of g: gamma_Q, or 1 without L_KL, 0 without the mix
    gamma_f: float,  # the same for f
) -> Objective:
    """reference.objective(e, gamma_g, gamma_f), in two launches; its backward in one.

    C and the loss: Q by Eq. (6) from the given column sums, labels by Eq. (10), soft cross-entropy (7)-(9).
    Gradients flow to e.features, e.mu_g and e.mu_f.
    """
    if not isinstance(e, Expectation):
        raise ValueError("objective() needs what fastget.kernels.expectation() makes; this Expectation is of another "
                         "backend: use the same one for both")  # fmt: skip
    loss, loss_g, loss_f, structure_g, structure_f, _ = _objective(
        e.features, e.mu_g, e.mu_f, e.cos_g, e.cos_f, e.colsum_g, e.colsum_f, e.y_M, e.scales,
        float(e.tau), float(gamma_g), float(gamma_f),
    )  # fmt: skip
    return Objective(loss, loss_g, loss_f, structure_g, structure_f)
