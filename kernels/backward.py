"""The gradient of both heads' losses to features, mu_g and mu_f, in one launch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.launch import launch
from fastget.kernels.logits import strides
from fastget.kernels.tile import EPS, at_least_eps, inverse_root, load_row, product


@triton.jit
def load_column(colsum, log_prior, classes, held):
    """1 / sqrt(colsum) and the log prior, each as a row of a (rows, classes) tile."""
    log_pi = tl.load(log_prior + classes, mask=held, other=0.0)
    return inverse_root(colsum, classes, held)[None, :], log_pi[None, :]


@triton.jit
def label_slope(P, tilt, hot, gamma):
    """P - (1 - gamma) Q - gamma onehot(y_M), where tilt = Q / P: Q near P is not subtracted from it."""
    return (1.0 - gamma) * (P * (1.0 - tilt)) + gamma * (P - hot.to(tl.float32))


@triton.jit
def cosine_of(logits, log_prior, tau):
    """The cosine that a logit was made of; 0 where the prior rules the class out."""
    return tl.where(logits == float("-inf"), 0.0, (logits - log_prior) * tau)


@triton.jit
def slope_tile(head, row, y, column, rows, classes, inside, tau, C):
    """The loss's slope, times the incoming gradient over B tau, and the cosines of one tile of rows and classes."""
    S, _, _, gamma, scale = head
    m, total, ratio, best, slope_best = row
    root, log_prior = column
    logits = tl.load(S + rows[:, None].to(tl.int64) * C + classes[None, :], mask=inside, other=float("-inf"))
    P = tl.exp(logits - m) / total
    slope = label_slope(P, root * ratio, classes[None, :] == y, gamma)
    slope = tl.where(classes[None, :] == best, slope_best, slope)
    return tl.where(inside, slope * scale, 0.0), cosine_of(logits, log_prior, tau)


@triton.jit
def add_tile(total, total_cos, d, cos, vectors, index, there, depth, deep, PRECISION: tl.constexpr):
    """total + sum_k d[:, k] v_k / |v_k| and total_cos + sum_k d[:, k] cos[:, k], over the vectors at `index`."""
    v, norms, stride, stride_d = vectors
    norm = at_least_eps(tl.load(norms + index, mask=there, other=1.0))
    at = v + index[:, None].to(tl.int64) * stride + depth[None, :].to(tl.int64) * stride_d
    tile = tl.load(at, mask=there[:, None] & deep[None, :], other=0.0).to(tl.float32)
    total_cos += tl.sum(d * cos, 1)
    return product(d / norm[None, :], tile, total, PRECISION), total_cos


@triton.jit
def store_gradient(out, total, total_cos, vectors, index, there, depth, deep, D):
    """(total - total_cos v / |v|) / |v|, the gradient to the vectors at `index`; 0 for one shorter than 1e-12."""
    v, norms, stride, stride_d = vectors
    inside = there[:, None] & deep[None, :]
    norm = tl.load(norms + index, mask=there, other=1.0)[:, None]
    length = at_least_eps(norm)
    at = v + index[:, None].to(tl.int64) * stride + depth[None, :].to(tl.int64) * stride_d
    tile = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    gradient = (total - total_cos[:, None] * (tile / length)) / length
    gradient = tl.where(norm < EPS, 0.0, gradient)  # a NaN norm keeps its NaN
    at = out + index[:, None].to(tl.int64) * D + depth[None, :]
    tl.store(at, gradient.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_features_gradient(
    total, total_cos, head, mu, y_M, log_prior, tau, rows, live, depth, deep, B, C,
    PRECISION: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One head's part of a tile of d_features: sum_c d[b,c] mu_c / |mu_c|, and sum_c d[b,c] cos[b,c]."""
    _, colsum, row_stats, _, _ = head
    row, y = load_row(row_stats, rows, live, B), tl.load(y_M + rows, mask=live, other=-1)[:, None]
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        held = classes < C
        column = load_column(colsum, log_prior, classes, held)
        d, cos = slope_tile(head, row, y, column, rows, classes, live[:, None] & held[None, :], tau, C)
        total, total_cos = add_tile(total, total_cos, d, cos, mu, classes, held, depth, deep, PRECISION)
    return total, total_cos


@triton.jit
def write_features_gradient(
    d_features, features, mu_g, mu_f, head_g, head_f, y_M, log_prior, tau, block, B, C, D,
    USE_G: tl.constexpr, USE_F: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One tile of d_features: (sum_c d mu_c / |mu_c| - sum_c d cos f_b / |f_b|) / |f_b|, both heads added."""
    blocks = tl.cdiv(D, BLOCK_D)
    rows = block // blocks * BLOCK_B + tl.arange(0, BLOCK_B)
    depth = block % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    live, deep = rows < B, depth < D
    total = tl.zeros((BLOCK_B, BLOCK_D), tl.float32)
    total_cos = tl.zeros((BLOCK_B,), tl.float32)
    if USE_G:
        total, total_cos = add_features_gradient(
            total, total_cos, head_g, mu_g, y_M, log_prior, tau, rows, live, depth, deep, B, C, PRECISION, BLOCK_C
        )
    if USE_F:
        total, total_cos = add_features_gradient(
            total, total_cos, head_f, mu_f, y_M, log_prior, tau, rows, live, depth, deep, B, C, PRECISION, BLOCK_C
        )
    store_gradient(d_features, total, total_cos, features, rows, live, depth, deep, D)


@triton.jit
def write_mu_gradient(
    d_mu, features, mu, head, y_M, log_prior, tau, block, B, C, D,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One tile of d_mu: (sum_b d[b,c] f_b / |f_b| - sum_b d[b,c] cos[b,c] mu_c / |mu_c|) / |mu_c|."""
    _, colsum, row_stats, _, _ = head
    blocks = tl.cdiv(D, BLOCK_D)
    classes = block // blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    depth = block % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    held, deep = classes < C, depth < D
    column = load_column(colsum, log_prior, classes, held)
    total = tl.zeros((BLOCK_C, BLOCK_D), tl.float32)
    total_cos = tl.zeros((BLOCK_C,), tl.float32)
    for b0 in range(0, B, BLOCK_B):
        rows = b0 + tl.arange(0, BLOCK_B)
        live = rows < B
        row, y = load_row(row_stats, rows, live, B), tl.load(y_M + rows, mask=live, other=-1)[:, None]
        d, cos = slope_tile(head, row, y, column, rows, classes, live[:, None] & held[None, :], tau, C)
        d, cos = tl.trans(d), tl.trans(cos)
        total, total_cos = add_tile(total, total_cos, d, cos, features, rows, live, depth, deep, PRECISION)
    store_gradient(d_mu, total, total_cos, mu, classes, held, depth, deep, D)


@triton.jit
def slope_scale(grad_loss, grad_head, tau, B):
    """The incoming gradient of a head's loss, over B tau."""
    grad = 0.0
    if grad_loss is not None:
        grad += tl.load(grad_loss)
    if grad_head is not None:
        grad += tl.load(grad_head)
    return grad / (B * tau)


@triton.jit(do_not_specialize=["B"])
def backward_kernel(
    features, mu_g, mu_f,  # (B, D), (C, D), (C, D)
    S_g, S_f,  # (B, C)
    colsum_g, colsum_f,  # (C,)
    rows_g, rows_f,  # (ROW_STATS, B)
    norm, norm_g, norm_f,  # (B,), (C,), (C,)
    y_M,  # (B,) int64
    log_prior,  # (C,)
    grad_loss, grad_g, grad_f,  # () incoming gradients; None: that loss has none
    d_features, d_mu_g, d_mu_f,  # out: (B, D), (C, D), (C, D); None: not asked for, or no path
    B, C, D, stride_b, stride_d, g_c, g_d, f_c, f_d, tau, gamma_g, gamma_f,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """loss = (1/B) sum_b (lse(S_b) - y_b . S_b), so dS = (P - y) / B, and with d = grad dS / tau

    d_features_b = (sum_c d mu_c / |mu_c| - sum_c d cos f_b / |f_b|) / |f_b|, both heads added;
    d_mu_c       = (sum_b d f_b / |f_b|   - sum_b d cos mu_c / |mu_c|) / |mu_c|.

    P and Q are made again from S, which costs less than keeping them. Tiles of d_features, d_mu_g and d_mu_f stand in
    one grid; each sums over its whole other axis in order. A vector shorter than 1e-12 gets no gradient.
    """
    USE_G: tl.constexpr = grad_loss is not None or grad_g is not None
    USE_F: tl.constexpr = grad_loss is not None or grad_f is not None
    f, g, h = (features, norm, stride_b, stride_d), (mu_g, norm_g, g_c, g_d), (mu_f, norm_f, f_c, f_d)
    head_g = (S_g, colsum_g, rows_g, gamma_g, slope_scale(grad_loss, grad_g, tau, B))
    head_f = (S_f, colsum_f, rows_f, gamma_f, slope_scale(grad_loss, grad_f, tau, B))
    block = tl.program_id(0)
    features_blocks = 0 if d_features is None else tl.cdiv(B, BLOCK_B) * tl.cdiv(D, BLOCK_D)
    g_blocks = 0 if d_mu_g is None else tl.cdiv(C, BLOCK_C) * tl.cdiv(D, BLOCK_D)
    if block < features_blocks:
        if d_features is not None:
            write_features_gradient(
                d_features, f, g, h, head_g, head_f, y_M, log_prior, tau, block, B, C, D,
                USE_G, USE_F, PRECISION, BLOCK_B, BLOCK_C, BLOCK_D,
            )  # fmt: skip
    elif block < features_blocks + g_blocks:
        if d_mu_g is not None:
            write_mu_gradient(
                d_mu_g, f, g, head_g, y_M, log_prior, tau, block - features_blocks, B, C, D,
                PRECISION, BLOCK_B, BLOCK_C, BLOCK_D,
            )  # fmt: skip
    else:
        if d_mu_f is not None:
            write_mu_gradient(
                d_mu_f, f, h, head_f, y_M, log_prior, tau, block - features_blocks - g_blocks, B, C, D,
                PRECISION, BLOCK_B, BLOCK_C, BLOCK_D,
            )  # fmt: skip


class Head(NamedTuple):
    """What the gradient of one head's loss is made of."""

    mu: Tensor  # (C, D)
    S: Tensor  # (B, C)
    colsum: Tensor  # (C,)
    row_stats: Tensor  # (ROW_STATS, B)
    norm: Tensor  # (C,) of mu
    gamma: float
    grad: Tensor | None  # () of this head's own loss


def launch_backward(
    features: Tensor,  # (B, D)
    y_M: Tensor,  # (B,) int64
    log_prior: Tensor,  # (C,)
    norm: Tensor,  # (B,) of the features
    tau: float,
    grad_loss: Tensor | None,  # () of loss_g + loss_f
    g: Head,
    f: Head,
    wanted: tuple[bool, bool, bool],  # which of d_features, d_mu_g, d_mu_f; at least one
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """torch.autograd.grad of the losses, in one launch; None for what is not wanted."""
    (B, D), C = features.shape, g.mu.shape[0]
    d_features, d_mu_g, d_mu_f = (
        torch.empty(x.shape, dtype=x.dtype, device=x.device) if want else None
        for x, want in zip((features, g.mu, f.mu), wanted, strict=True)
    )
    config = configs.backward(B, configs.precision(features, g.mu, f.mu))
    blocks = [triton.cdiv(B, config.BLOCK_B), *[triton.cdiv(C, config.BLOCK_C)] * 2]
    programs = sum(n for n, want in zip(blocks, wanted, strict=True) if want) * triton.cdiv(D, config.BLOCK_D)
    use_g, use_f = grad_loss is not None or g.grad is not None, grad_loss is not None or f.grad is not None
    of_g, of_f = (head[:5] if use else [None] * 5 for head, use in ((g, use_g), (f, use_f)))
    pairs = [x for pair in zip(of_g, of_f, strict=True) for x in pair]  # mu_g, mu_f, S_g, S_f, ...
    inputs = (features, *pairs[:8], norm, *pairs[8:], y_M, log_prior, grad_loss, g.grad, f.grad)
    outputs = (d_features, d_mu_g, d_mu_f)
    launch(
        backward_kernel, (programs,), *inputs, *outputs,
        B, C, D, *features.stride(), *strides(of_g[0]), *strides(of_f[0]), tau, g.gamma, f.gamma,
        reads=inputs, writes=outputs, **vars(config),
    )  # fmt: skip
    return outputs
