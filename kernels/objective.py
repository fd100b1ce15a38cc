"""C and the loss of both heads, in two launches; its gradient is kernels/backward.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.backward import Head, label_slope, launch_backward
from fastget.kernels.expectation import Expectation
from fastget.kernels.launch import empty, launch
from fastget.kernels.tile import ROW_STATS, finite_max, first_best, inverse_root, store_row
from fastget.kernels.wrap import Differentiable, Operator


class Objective(NamedTuple):
    """Eq. (11)'s target term and what is logged of it: scalars, means over this rank's rows."""

    loss: Tensor  # loss_g + loss_f
    loss_g: Tensor
    loss_f: Tensor
    structure_g: Tensor  # Eq. (5), no gradient
    structure_f: Tensor


@triton.jit
def head_rows(S, colsum, y, row_stats, loss_part, kl_part, Q_part, rows, live, B, C, gamma, BLOCK_C: tl.constexpr):
    """One head, one block of rows: what its P and Q are made of, the loss, KL(Q || P), Q's column sums.

    Also the slope at the likeliest class: where its P is over 1/2, as minus the sum of all others, which it equals.
    P - y cancels there when P is near 1, and the others' slopes are small numbers that do not.
    """
    row = S + rows[:, None].to(tl.int64) * C
    m = tl.full(rows.shape, float("-inf"), tl.float32)
    best = tl.zeros(rows.shape, tl.int32)
    total = tl.zeros(rows.shape, tl.float32)  # sum_c exp(S - m)
    total_Q = tl.zeros(rows.shape, tl.float32)  # sum_c exp(S - m) / sqrt(colsum)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        held = classes < C
        logits = tl.load(row + classes[None, :], mask=live[:, None] & held[None, :], other=float("-inf"))
        peak, column = first_best(logits, classes, held[None, :], C - 1)
        best = tl.where(peak > m, column, best)
        higher = tl.maximum(m, peak)
        fade, masses = tl.exp(m - finite_max(higher)), tl.exp(logits - finite_max(higher)[:, None])
        total = total * fade + tl.sum(masses, 1)
        total_Q = total_Q * fade + tl.sum(masses * inverse_root(colsum, classes, held)[None, :], 1)
        m = higher
    m, total = finite_max(m), tl.where(live, total, 1.0)
    ratio = total / tl.where(live, total_Q, 1.0)
    log_total = tl.log(total)

    loss = tl.zeros(rows.shape, tl.float32)
    kl = tl.zeros(rows.shape, tl.float32)
    others = tl.zeros(rows.shape, tl.float32)
    own = tl.zeros(rows.shape, tl.float32)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        held = classes < C
        inside = live[:, None] & held[None, :]
        logits = tl.load(row + classes[None, :], mask=inside, other=0.0)
        log_P = (logits - m[:, None]) - log_total[:, None]
        P = tl.where(inside, tl.exp(log_P), 0.0)
        tilt = inverse_root(colsum, classes, held)[None, :] * ratio[:, None]
        Q = P * tilt
        hot = (y[:, None] == classes[None, :]) & inside
        label = (1.0 - gamma) * Q + gamma * hot.to(tl.float32)
        loss -= tl.sum(tl.where(label == 0, 0.0, label * log_P), 1)  # a NaN stays one: it must be seen
        kl += tl.sum(tl.where(Q == 0, 0.0, Q * tl.log(tilt)), 1)
        slope = label_slope(P, tilt, hot, gamma)
        likeliest = classes[None, :] == best[:, None]
        others += tl.sum(tl.where(likeliest, 0.0, slope), 1)
        own += tl.sum(tl.where(likeliest, slope, 0.0), 1)
        tl.store(Q_part + classes, tl.sum(Q, 0), mask=held)
    slope = tl.where(total < 2, -others, own)
    store_row(row_stats, rows, live, B, m, total, ratio, best, slope)
    tl.store(loss_part, tl.sum(tl.where(live, loss, 0.0), 0))
    tl.store(kl_part, tl.sum(tl.where(live, kl, 0.0), 0))


@triton.jit(do_not_specialize=["B"])
def objective_kernel(
    S_g, S_f,  # (B, C)
    colsum_g, colsum_f,  # (C,)
    y_M,  # (B,) int64
    rows_g, rows_f,  # (ROW_STATS, B) out, for the backward pass
    loss_parts, kl_parts,  # (2, blocks) out: each block's sum of its rows' losses, and of KL(Q || P)
    Q_parts,  # (2, blocks, C) out: each block's column sums of Q
    B, C, gamma_g, gamma_f,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Q = P / sqrt(colsum), rows renormalised; y = (1 - gamma) Q + gamma onehot(y_M); row loss = -sum_c y log P.

    d loss / dS = P - y, Q and y being constants: kernels/backward.py. Each program owns a block of rows of one head.
    """
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    rows = block * BLOCK_B + tl.arange(0, BLOCK_B)
    live = rows < B
    y = tl.load(y_M + rows, mask=live, other=-1)
    part = tl.program_id(1) * blocks + block
    loss_part, kl_part, Q_part = loss_parts + part, kl_parts + part, Q_parts + part.to(tl.int64) * C
    if tl.program_id(1) == 0:
        head_rows(S_g, colsum_g, y, rows_g, loss_part, kl_part, Q_part, rows, live, B, C, gamma_g, BLOCK_C)
    else:
        head_rows(S_f, colsum_f, y, rows_f, loss_part, kl_part, Q_part, rows, live, B, C, gamma_f, BLOCK_C)


@triton.jit
def mean_of_parts(parts, blocks, B, BLOCK_B: tl.constexpr):
    """What the blocks of rows summed up, added in order and divided by B."""
    total = tl.zeros((BLOCK_B,), tl.float32)
    for b0 in range(0, blocks, BLOCK_B):
        block = b0 + tl.arange(0, BLOCK_B)
        total += tl.load(parts + block, mask=block < blocks, other=0.0)
    return tl.sum(total, 0) / B


@triton.jit
def structure(kl_parts, Q_parts, blocks, B, C, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr):
    """Eq. (5): sum of KL(Q || P) / B + sum_c Qbar_c log Qbar_c, from the blocks' sums in order."""
    entropy = tl.zeros((BLOCK_C,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        mass = tl.zeros((BLOCK_C,), tl.float32)
        for b0 in range(0, blocks, BLOCK_B):
            block = b0 + tl.arange(0, BLOCK_B)
            at = Q_parts + block[:, None].to(tl.int64) * C + classes[None, :]
            mass += tl.sum(tl.load(at, mask=(block < blocks)[:, None] & (classes < C)[None, :], other=0.0), 0)
        mean = mass / B
        entropy += mean * tl.log(tl.where(mean == 0, 1.0, mean))
    return mean_of_parts(kl_parts, blocks, B, BLOCK_B) + tl.sum(entropy, 0)


@triton.jit(do_not_specialize=["blocks", "B"])
def totals_kernel(
    loss_parts, kl_parts,  # (2, blocks)
    Q_parts,  # (2, blocks, C)
    loss, loss_g, loss_f, structure_g, structure_f,  # () out
    blocks, B, C,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """loss_h = sum of the rows' losses / B; structure_h = sum KL / B + sum_c Qbar_c log Qbar_c. One program."""
    total_g = mean_of_parts(loss_parts, blocks, B, BLOCK_B)
    total_f = mean_of_parts(loss_parts + blocks, blocks, B, BLOCK_B)
    tl.store(loss, total_g + total_f)
    tl.store(loss_g, total_g)
    tl.store(loss_f, total_f)
    Q_f = Q_parts + tl.cast(blocks, tl.int64) * C
    tl.store(structure_g, structure(kl_parts, Q_parts, blocks, B, C, BLOCK_B, BLOCK_C))
    tl.store(structure_f, structure(kl_parts + blocks, Q_f, blocks, B, C, BLOCK_B, BLOCK_C))


def run_objective(
    features: Tensor,
    mu_g: Tensor,
    mu_f: Tensor,
    S_g: Tensor,
    S_f: Tensor,
    colsum_g: Tensor,
    colsum_f: Tensor,
    y_M: Tensor,
    log_prior: Tensor,
    norm: Tensor,
    norm_g: Tensor,
    norm_f: Tensor,
    tau: float,
    gamma_g: float,
    gamma_f: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, C = S_g.shape
    config = configs.objective(B, C)
    blocks = triton.cdiv(B, config.BLOCK_B)

    rows_g, rows_f = empty(S_g, ROW_STATS, B), empty(S_g, ROW_STATS, B)
    parts = (empty(S_g, 2, blocks), empty(S_g, 2, blocks), empty(S_g, 2, blocks, C))
    inputs = (S_g, S_f, colsum_g, colsum_f, y_M)
    launch(
        objective_kernel, (blocks, 2), *inputs, rows_g, rows_f, *parts, B, C, gamma_g, gamma_f,
        reads=inputs, writes=(rows_g, rows_f, *parts), **vars(config),
    )  # fmt: skip
    out = (empty(S_g), empty(S_g), empty(S_g), empty(S_g), empty(S_g))
    launch(totals_kernel, (1,), *parts, *out, blocks, B, C, reads=parts, writes=out, **vars(configs.totals(C)))
    return (*out, rows_g, rows_f)


def _fake(features: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    shapes = (*[()] * 5, *[(ROW_STATS, features.shape[0])] * 2)
    return tuple(features.new_empty(shape, dtype=torch.float32) for shape in shapes)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, tau, gamma_g, gamma_f = inputs
    ctx.save_for_backward(*tensors, *output[5:])
    ctx.numbers = (tau, gamma_g, gamma_f)
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def run_gradient(
    features: Tensor,
    mu_g: Tensor,
    mu_f: Tensor,
    S_g: Tensor,
    S_f: Tensor,
    colsum_g: Tensor,
    colsum_f: Tensor,
    y_M: Tensor,
    log_prior: Tensor,
    norm: Tensor,
    norm_g: Tensor,
    norm_f: Tensor,
    rows_g: Tensor,
    rows_f: Tensor,
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
        features, y_M, log_prior, norm, tau, grad_loss,
        Head(mu_g, S_g, colsum_g, rows_g, norm_g, gamma_g, grad_g),
        Head(mu_f, S_f, colsum_f, rows_f, norm_f, gamma_f, grad_f),
        paths(has, needs),
    )  # fmt: skip
    return [d for d in found if d is not None]


def _gradient_fake(features: Tensor, mu_g: Tensor, mu_f: Tensor, *rest: Any) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format)
            for t, path in zip((features, mu_g, mu_f), paths(rest[-2], rest[-1]), strict=True) if path]  # fmt: skip


def paths(has: list[bool], needs: list[bool]) -> tuple[bool, bool, bool]:
    """Which of d_features, d_mu_g, d_mu_f exist: asked for, and reached by a gradient of loss, loss_g or loss_f."""
    g, f = has[0] or has[1], has[0] or has[2]
    return needs[0] and (g or f), needs[1] and g, needs[2] and f


def _backward(run: Any, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    has = [g is not None for g in grads[:3]]
    needs = list(ctx.needs_input_grad[:3])
    found: list[Tensor | None] = [None, None, None]
    wanted = paths(has, needs)
    if any(wanted):
        arrived = [g for g in grads[:3] if g is not None]
        made = iter(run(*ctx.saved_tensors, list(ctx.numbers), arrived, has, needs))
        found = [next(made) if path else None for path in wanted]
    return (*found, *[None] * 12)


_objective = Differentiable(
    "objective", run_objective, _fake, _setup, Operator("objective_backward", run_gradient, _gradient_fake), _backward
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
    loss, loss_g, loss_f, structure_g, structure_f, *_ = _objective(
        e.features, e.mu_g, e.mu_f, e.S_g, e.S_f, e.colsum_g, e.colsum_f, e.y_M, *e.scales,
        float(e.tau), float(gamma_g), float(gamma_f),
    )  # fmt: skip
    return Objective(loss, loss_g, loss_f, structure_g, structure_f)
