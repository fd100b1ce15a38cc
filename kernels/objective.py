"""C and the loss of both heads, in two launches; its gradient is kernels/backward.py."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.backward import Head, launch_backward
from fastget.kernels.launch import empty, launch
from fastget.kernels.tile import at_least_eps, first_best
from fastget.kernels.wrap import Differentiable, Operator
from fastget.reference import Expectation, Objective, Prior

# the programs of the second launch
LOSSES, STRUCTURE_G, STRUCTURE_F = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
SCALARS = tl.constexpr(3)  # and from here on tiles of columns


@triton.jit
def column_weights(colsum, offs_c, mask_c, exponent):
    """1 / colsum^exponent, 0 for a column of mass zero; a NaN stays one. Eq. (6)."""
    mass = tl.load(colsum + offs_c, mask=mask_c, other=0.0).to(tl.float32)
    empty = mass <= 0
    mass = tl.where(empty, 1.0, mass)
    weight = 1.0 / tl.sqrt(mass)
    if exponent != 0.5:  # the paper's costs no exponential
        weight = tl.exp(-exponent * tl.log(mass))
    return tl.where(empty, 0.0, weight)[None, :]


@triton.jit
def sharpened(below, sharpness):
    """exp(sharpness (S - m)) of a logit `below` its row's maximum; 1, without an exponential, for the paper's power."""
    boost = tl.zeros_like(below) + 1.0
    if sharpness != 0.0:
        boost = tl.exp(sharpness * tl.minimum(below, 0.0))  # above 0 are lanes outside, whose P is 0
    return boost


@triton.jit
def write_head(
    S, colsum, norm_mu, gamma, exponent, sharpness, log_prior, norm, y, slopes, cos_rows,
    loss_part, kl_part, Q_part, cos_part, offs_b, mask_b, B, C, tau, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One head, one block of rows: what objective_kernel() has out."""
    row = offs_b[:, None].to(tl.int64) * C

    # 1. the maximum m and its class, sum_c exp(S - m), and the same to the power, over colsum^exponent
    m = tl.full(offs_b.shape, float("-inf"), tl.float32)
    best = tl.zeros(offs_b.shape, tl.int32)
    total = tl.zeros(offs_b.shape, tl.float32)
    total_Q = tl.zeros(offs_b.shape, tl.float32)
    for c0 in range(0, C, BLOCK_C):
        offs_c = c0 + tl.arange(0, BLOCK_C)
        mask_c = offs_c < C
        mask = mask_b[:, None] & mask_c[None, :]
        logits = tl.load(S + row + offs_c[None, :], mask=mask, other=float("-inf"))
        peak, column = first_best(logits, offs_c, mask_c, C - 1)
        best = tl.where(peak > m, column, best)
        higher = tl.maximum(m, peak)
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        rise, below = m - safe, logits - safe[:, None]
        shrunk, masses = tl.exp(rise), tl.exp(below)
        total = total * shrunk + tl.sum(masses, 1)
        masses *= sharpened(below, sharpness) * column_weights(colsum, offs_c, mask_c, exponent)
        total_Q = total_Q * shrunk * sharpened(rise, sharpness) + tl.sum(masses, 1)
        m = higher
    m = tl.where(m == float("-inf"), 0.0, m)
    total = tl.where(mask_b, total, 1.0)
    ratio = total / tl.where(mask_b, total_Q, 1.0)
    log_total = tl.log(total)

    # 2. loss, KL(Q || P), Q's column sums; with tilt = Q / P, so that a Q near P is not subtracted from it
    loss = tl.zeros(offs_b.shape, tl.float32)
    kl = tl.zeros(offs_b.shape, tl.float32)
    others = tl.zeros(offs_b.shape, tl.float32)
    own = tl.zeros(offs_b.shape, tl.float32)
    for c0 in range(0, C, BLOCK_C):
        offs_c = c0 + tl.arange(0, BLOCK_C)
        mask_c = offs_c < C
        mask = mask_b[:, None] & mask_c[None, :]
        logits = tl.load(S + row + offs_c[None, :], mask=mask, other=0.0)
        log_P = (logits - m[:, None]) - log_total[:, None]
        P = tl.where(mask, tl.exp(log_P), 0.0)
        tilt = column_weights(colsum, offs_c, mask_c, exponent) * ratio[:, None]
        tilt *= sharpened(logits - m[:, None], sharpness)
        Q = P * tilt
        hot = ((y[:, None] == offs_c[None, :]) & mask).to(tl.float32)
        label = (1.0 - gamma) * Q + gamma * hot
        loss -= tl.sum(tl.where(label == 0, 0.0, label * log_P), 1)  # a NaN stays one: it must be seen
        kl += tl.sum(tl.where(Q == 0, 0.0, Q * tl.log(tilt)), 1)
        slope = (1.0 - gamma) * (P * (1.0 - tilt)) + gamma * (P - hot)  # P - label
        likeliest = offs_c[None, :] == best[:, None]
        others += tl.sum(tl.where(likeliest, 0.0, slope), 1)
        own += tl.sum(tl.where(likeliest, slope, 0.0), 1)
        tl.store(Q_part + offs_c, tl.sum(Q, 0), mask=mask_c)
    tl.store(loss_part, tl.sum(tl.where(mask_b, loss, 0.0), 0))
    tl.store(kl_part, tl.sum(tl.where(mask_b, kl, 0.0), 0))

    # 3. slopes for the backward pass. Where the likeliest class has a P over 1/2, P - label cancels there: the slope is
    # minus the sum of all others, which it equals, and whose numbers are small.
    slope_best = tl.where(total < 2, -others, own)
    along = tl.zeros(offs_b.shape, tl.float32)
    length = at_least_eps(tl.load(norm + offs_b, mask=mask_b, other=1.0))
    for c0 in range(0, C, BLOCK_C):
        offs_c = c0 + tl.arange(0, BLOCK_C)
        mask_c = offs_c < C
        mask = mask_b[:, None] & mask_c[None, :]
        logits = tl.load(S + row + offs_c[None, :], mask=mask, other=float("-inf"))
        P = tl.exp(logits - m[:, None]) / total[:, None]
        tilt = column_weights(colsum, offs_c, mask_c, exponent) * ratio[:, None]
        tilt *= sharpened(logits - m[:, None], sharpness)
        hot = (y[:, None] == offs_c[None, :]).to(tl.float32)
        slope = (1.0 - gamma) * (P * (1.0 - tilt)) + gamma * (P - hot)
        slope = tl.where(offs_c[None, :] == best[:, None], slope_best[:, None], slope)
        slope = tl.where(mask, slope, 0.0)
        log_pi = tl.load(log_prior + offs_c, mask=mask_c, other=0.0)
        cos = tl.where(logits == float("-inf"), 0.0, (logits - log_pi[None, :]) * tau)  # 0 where the prior is 0
        turned = slope * cos
        along += tl.sum(turned, 1)
        length_mu = at_least_eps(tl.load(norm_mu + offs_c, mask=mask_c, other=1.0))
        at = slopes + row + offs_c[None, :]
        tl.store(at, slope / length_mu[None, :], mask=mask)
        tl.store(at + tl.cast(B, tl.int64) * C, slope / length[:, None], mask=mask)
        tl.store(cos_part + offs_c, tl.sum(turned, 0), mask=mask_c)
    tl.store(cos_rows + offs_b, along, mask=mask_b)


@triton.jit(do_not_specialize=["B"])
def objective_kernel(
    S_g, S_f,  # (B, C)
    colsum_g, colsum_f,  # (C,)
    y_M,  # (B,) int64
    exponent, power,  # () of the column sums, and of P
    log_prior,  # (C,)
    norm, norm_g, norm_f,  # (B,), (C,), (C,): of the features, mu_g, mu_f
    slopes_g, slopes_f,  # (2, B, C) out: (P - y) / |mu_c|, (P - y) / |f_b|
    cos_rows,  # (2, B) out: sum_c (P - y) cos
    loss_parts, kl_parts,  # (2, blocks) out: each block's sum of its rows' losses, and of KL(Q || P)
    Q_parts, cos_parts,  # (2, blocks, C) out: each block's column sums of Q, and of (P - y) cos
    B, C, tau, gamma_g, gamma_f,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Q = P^power / colsum^exponent, rows renormalised; y = (1 - gamma) Q + gamma onehot(y_M);
    row loss = -sum_c y log P.

    d loss / dS = P - y, Q and y being constants: written here once, where kernels/backward.py would make it again for
    every tile of the width. Each program owns a block of rows of one head.
    """
    block = tl.program_id(0)
    part = tl.program_id(1) * tl.num_programs(0) + block
    offs_b = block * BLOCK_B + tl.arange(0, BLOCK_B)
    mask_b = offs_b < B
    y = tl.load(y_M + offs_b, mask=mask_b, other=-1)
    of_mass, sharpness = tl.load(exponent), tl.load(power) - 1.0
    loss_part, kl_part = loss_parts + part, kl_parts + part
    Q_part, cos_part = Q_parts + part.to(tl.int64) * C, cos_parts + part.to(tl.int64) * C
    if tl.program_id(1) == 0:
        write_head(
            S_g, colsum_g, norm_g, gamma_g, of_mass, sharpness, log_prior, norm, y, slopes_g, cos_rows,
            loss_part, kl_part, Q_part, cos_part, offs_b, mask_b, B, C, tau, BLOCK_C,
        )  # fmt: skip
    else:
        write_head(
            S_f, colsum_f, norm_f, gamma_f, of_mass, sharpness, log_prior, norm, y, slopes_f, cos_rows + B,
            loss_part, kl_part, Q_part, cos_part, offs_b, mask_b, B, C, tau, BLOCK_C,
        )  # fmt: skip


@triton.jit
def mean_of_parts(parts, blocks, B, BLOCK_B: tl.constexpr):
    """What the blocks of rows summed up, added in order and divided by B."""
    total = tl.zeros((BLOCK_B,), tl.float32)
    for b0 in range(0, blocks, BLOCK_B):
        block = b0 + tl.arange(0, BLOCK_B)
        total += tl.load(parts + block, mask=block < blocks, other=0.0)
    return tl.sum(total, 0) / B


@triton.jit
def column_totals(parts, offs_c, mask_c, blocks, C, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr):
    """The blocks' column sums, added in order, of one tile of columns."""
    total = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, blocks, BLOCK_B):
        block = b0 + tl.arange(0, BLOCK_B)
        at = parts + block[:, None].to(tl.int64) * C + offs_c[None, :]
        total += tl.sum(tl.load(at, mask=(block < blocks)[:, None] & mask_c[None, :], other=0.0), 0)
    return total


@triton.jit
def structure(kl_parts, Q_parts, blocks, B, C, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr):
    """Eq. (5): sum of KL(Q || P) / B + sum_c Qbar_c log Qbar_c, from the blocks' sums in order."""
    entropy = tl.zeros((BLOCK_C,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        offs_c = c0 + tl.arange(0, BLOCK_C)
        mean = column_totals(Q_parts, offs_c, offs_c < C, blocks, C, BLOCK_B, BLOCK_C) / B
        entropy += mean * tl.log(tl.where(mean == 0, 1.0, mean))
    return mean_of_parts(kl_parts, blocks, B, BLOCK_B) + tl.sum(entropy, 0)


@triton.jit(do_not_specialize=["blocks", "B"])
def totals_kernel(
    loss_parts, kl_parts,  # (2, blocks)
    Q_parts, cos_parts,  # (2, blocks, C)
    loss, loss_g, loss_f, structure_g, structure_f,  # () out
    cos_columns,  # (2, C) out: sum_b (P - y) cos
    blocks, B, C,
    BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """loss_h = sum of the rows' losses / B; structure_h = sum KL / B + sum_c Qbar_c log Qbar_c.

    One program for the losses, one for each structure, the rest for tiles of the columns' sums.
    """
    program = tl.program_id(0)
    wide = tl.cast(blocks, tl.int64) * C
    if program == LOSSES:
        total_g = mean_of_parts(loss_parts, blocks, B, BLOCK_B)
        total_f = mean_of_parts(loss_parts + blocks, blocks, B, BLOCK_B)
        tl.store(loss, total_g + total_f)
        tl.store(loss_g, total_g)
        tl.store(loss_f, total_f)
    elif program == STRUCTURE_G:
        tl.store(structure_g, structure(kl_parts, Q_parts, blocks, B, C, BLOCK_B, BLOCK_C))
    elif program == STRUCTURE_F:
        tl.store(structure_f, structure(kl_parts + blocks, Q_parts + wide, blocks, B, C, BLOCK_B, BLOCK_C))
    else:
        tiles = tl.cdiv(C, BLOCK_C)
        head, tile = (program - SCALARS) // tiles, (program - SCALARS) % tiles
        offs_c = tile * BLOCK_C + tl.arange(0, BLOCK_C)
        total = column_totals(cos_parts + head * wide, offs_c, offs_c < C, blocks, C, BLOCK_B, BLOCK_C)
        tl.store(cos_columns + head * C + offs_c, total, mask=offs_c < C)


def run_objective(
    features: Tensor, mu_g: Tensor, mu_f: Tensor, S_g: Tensor, S_f: Tensor, colsum_g: Tensor, colsum_f: Tensor,
    y_M: Tensor, exponent: Tensor, power: Tensor, log_prior: Tensor, norm: Tensor, norm_g: Tensor, norm_f: Tensor,
    tau: float, gamma_g: float, gamma_f: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, C = S_g.shape
    config, last = configs.objective(B, C), configs.totals(B, C)
    blocks = triton.cdiv(B, config.BLOCK_B)

    slopes = [torch.empty((2, B, C), dtype=slope_type(features), device=S_g.device) for _ in range(2)]
    cos_rows, cos_columns = empty(S_g, 2, B), empty(S_g, 2, C)
    parts = (empty(S_g, 2, blocks), empty(S_g, 2, blocks), empty(S_g, 2, blocks, C), empty(S_g, 2, blocks, C))
    inputs = (S_g, S_f, colsum_g, colsum_f, y_M, exponent, power, log_prior, norm, norm_g, norm_f)
    launch(
        objective_kernel, (blocks, 2), *inputs, *slopes, cos_rows, *parts, B, C, tau, gamma_g, gamma_f,
        writes=(*slopes, cos_rows, *parts), **vars(config),
    )  # fmt: skip
    out = (empty(S_g), empty(S_g), empty(S_g), empty(S_g), empty(S_g))
    launch(
        totals_kernel, (SCALARS.value + 2 * triton.cdiv(C, last.BLOCK_C),), *parts, *out, cos_columns, blocks, B, C,
        writes=(*out, cos_columns), **vars(last),
    )  # fmt: skip
    return (*out, slopes[0], slopes[1], cos_rows, cos_columns)


def slope_type(features: Tensor) -> torch.dtype:
    """Of the slopes that the backward pass multiplies: that of its products."""
    return torch.bfloat16 if configs.precision(features) == "bf16" else torch.float32


def _fake(features: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    (B, C), kind = rest[2].shape, slope_type(features)
    losses = [rest[2].new_empty(()) for _ in range(5)]
    slopes = [rest[2].new_empty((2, B, C), dtype=kind) for _ in range(2)]
    return (*losses, *slopes, rest[2].new_empty((2, B)), rest[2].new_empty((2, C)))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    features, mu_g, mu_f, *_, norm, norm_g, norm_f, ctx.tau, _, _ = inputs
    ctx.save_for_backward(features, mu_g, mu_f, norm, norm_g, norm_f, *output[5:])
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def run_gradient(
    features: Tensor, mu_g: Tensor, mu_f: Tensor, norm: Tensor, norm_g: Tensor, norm_f: Tensor,
    slopes_g: Tensor, slopes_f: Tensor, cos_rows: Tensor, cos_columns: Tensor, tau: float,
    grads: list[Tensor], has: list[bool], needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that `needs` asks for and that have a path, in the order features, mu_g, mu_f."""
    arrived = iter(grads)
    grad_loss, grad_g, grad_f = (next(arrived) if there else None for there in has)
    head_g = Head(mu_g, slopes_g, norm_g, grad_g) if has[0] or has[1] else None
    head_f = Head(mu_f, slopes_f, norm_f, grad_f) if has[0] or has[2] else None
    scale, precision = 1 / (len(features) * tau), configs.precision(features, mu_g, mu_f)
    found = launch_backward(
        features, norm, cos_rows, cos_columns, scale, grad_loss, head_g, head_f, paths(has, needs), precision
    )
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
        made = iter(run(*ctx.saved_tensors, ctx.tau, arrived, has, needs))
        found = [next(made) if path else None for path in wanted]
    return (*found, *[None] * 14)


_objective = Differentiable(
    "objective", run_objective, _fake, _setup, Operator("objective_backward", run_gradient, _gradient_fake), _backward
)


def objective(e: Expectation, prior: Prior, gamma_g: float, gamma_f: float) -> Objective:
    """reference.objective(e, prior, gamma_g, gamma_f), in two launches; its backward in one.

    C and the loss: Q by Eq. (6) from the given column sums, labels by Eq. (10), soft cross-entropy (7)-(9).
    Gradients flow to e.features, e.mu_g and e.mu_f.
    """
    if e.scales is None:
        raise ValueError("this Expectation is the reference's, which has no norms for the kernels' gradient: use one "
                         "backend for both")  # fmt: skip
    loss, loss_g, loss_f, structure_g, structure_f, *_ = _objective(
        e.features, e.mu_g, e.mu_f, e.S_g, e.S_f, e.colsum_g, e.colsum_f, e.y_M,
        prior.exponent.detach(), prior.power.detach(), *e.scales, float(e.tau), float(gamma_g), float(gamma_f),
    )  # fmt: skip
    return Objective(loss, loss_g, loss_f, structure_g, structure_f)
