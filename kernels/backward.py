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
from fastget.kernels.tile import product, quarters, store_gradient, vector_tile

WHOLE = tl.constexpr(128 * 128)  # elements of a tile that is stored at once: more take registers that are not there


@triton.jit
def add_features_gradient(
    total, slopes, scale, mu, rows, live, depth, deep, C,
    SAME: tl.constexpr, PRECISION: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One head's part of a tile of d_features: sum_c d[b,c] mu_c / |mu_c|; with SAME the scale is left to the end."""
    at = slopes + rows[:, None].to(tl.int64) * C
    for c0 in range(0, C, BLOCK_K):
        classes = c0 + tl.arange(0, BLOCK_K)
        held = classes < C
        d = tl.load(at + classes[None, :], mask=live[:, None] & held[None, :], other=0.0)
        if not SAME:
            d = d.to(tl.float32) * scale
        total = product(d, vector_tile(mu, classes, held, depth, deep), total, PRECISION)
    return total


@triton.jit
def store_pieces(out, total, total_cos, vectors, index, there, column, D, BLOCK_D: tl.constexpr):
    """store_gradient() of a tile, a large one in pieces."""
    if total.shape[0] * BLOCK_D > WHOLE:
        pieces = quarters(total)
        for i in tl.static_range(4):
            depth = column * BLOCK_D + i * (BLOCK_D // 4) + tl.arange(0, BLOCK_D // 4)
            store_gradient(out, pieces[i], total_cos, vectors, index, there, depth, depth < D, D)
    else:
        depth = column * BLOCK_D + tl.arange(0, BLOCK_D)
        store_gradient(out, total, total_cos, vectors, index, there, depth, depth < D, D)


@triton.jit
def write_features_gradient(
    d_features, features, head_g, head_f, block, B, C, D, USE_G: tl.constexpr, USE_F: tl.constexpr, SAME: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile of d_features: (sum_c d mu_c / |mu_c| - sum_c d cos f_b / |f_b|) / |f_b|, both heads added."""
    blocks = tl.cdiv(D, BLOCK_D)
    rows = block // blocks * BLOCK_B + tl.arange(0, BLOCK_B)
    depth = block % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    live, deep = rows < B, depth < D
    total = tl.zeros((BLOCK_B, BLOCK_D), tl.float32)
    total_cos = tl.zeros((BLOCK_B,), tl.float32)
    if USE_G:
        mu, slopes, cos_rows, _, scale = head_g
        total = add_features_gradient(total, slopes, scale, mu, rows, live, depth, deep, C, SAME, PRECISION, BLOCK_K)
        total_cos += tl.load(cos_rows + rows, mask=live, other=0.0) * scale
    if USE_F:
        mu, slopes, cos_rows, _, scale = head_f
        total = add_features_gradient(total, slopes, scale, mu, rows, live, depth, deep, C, SAME, PRECISION, BLOCK_K)
        total_cos += tl.load(cos_rows + rows, mask=live, other=0.0) * scale
    if SAME:
        total = total * (head_g[4] if USE_G else head_f[4])
    store_pieces(d_features, total, total_cos, features, rows, live, block % blocks, D, BLOCK_D)


@triton.jit
def write_mu_gradient(
    d_mu, features, head, block, B, C, D,
    PRECISION: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile of d_mu: (sum_b d[b,c] f_b / |f_b| - sum_b d[b,c] cos[b,c] mu_c / |mu_c|) / |mu_c|."""
    mu, slopes, _, cos_columns, scale = head
    blocks = tl.cdiv(D, BLOCK_D)
    classes = block // blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    depth = block % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    held, deep = classes < C, depth < D
    total = tl.zeros((BLOCK_C, BLOCK_D), tl.float32)
    for b0 in range(0, B, BLOCK_K):
        rows = b0 + tl.arange(0, BLOCK_K)
        live = rows < B
        at = slopes + (rows[:, None].to(tl.int64) + B) * C + classes[None, :]
        d = tl.trans(tl.load(at, mask=live[:, None] & held[None, :], other=0.0))
        total = product(d, vector_tile(features, rows, live, depth, deep), total, PRECISION)
    total_cos = tl.load(cos_columns + classes, mask=held, other=0.0) * scale
    store_pieces(d_mu, total * scale, total_cos, mu, classes, held, block % blocks, D, BLOCK_D)


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
    slopes_g, slopes_f,  # (2, B, C): (P - y) / |mu_c|, (P - y) / |f_b|
    norm, norm_g, norm_f,  # (B,), (C,), (C,)
    cos_rows,  # (2, B): sum_c (P - y) cos
    cos_columns,  # (2, C): sum_b (P - y) cos
    grad_loss, grad_g, grad_f,  # () incoming gradients; None: that loss has none
    d_features, d_mu_g, d_mu_f,  # out: (B, D), (C, D), (C, D); None: not asked for, or no path
    B, C, D, stride_b, stride_d, g_c, g_d, f_c, f_d, tau,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """loss = (1/B) sum_b (lse(S_b) - y_b . S_b), so dS = (P - y) / B, and with d = grad dS / tau

    d_features_b = (sum_c d mu_c / |mu_c| - sum_c d cos f_b / |f_b|) / |f_b|, both heads added;
    d_mu_c       = (sum_b d f_b / |f_b|   - sum_b d cos mu_c / |mu_c|) / |mu_c|.

    Tiles of d_features (BLOCK_B, BLOCK_D) and of d_mu_g and d_mu_f (BLOCK_C, BLOCK_D) stand in one grid; each sums over
    its whole other axis in order, BLOCK_K at a time. A vector shorter than 1e-12 gets no gradient.
    """
    USE_G: tl.constexpr = grad_loss is not None or grad_g is not None
    USE_F: tl.constexpr = grad_loss is not None or grad_f is not None
    SAME: tl.constexpr = not (USE_G and USE_F) or (grad_g is None and grad_f is None)
    f, g, h = (features, norm, stride_b, stride_d), (mu_g, norm_g, g_c, g_d), (mu_f, norm_f, f_c, f_d)
    head_g = (g, slopes_g, cos_rows, cos_columns, slope_scale(grad_loss, grad_g, tau, B))
    head_f = (h, slopes_f, cos_rows + B, cos_columns + C, slope_scale(grad_loss, grad_f, tau, B))
    block = tl.program_id(0)
    features_blocks = 0 if d_features is None else tl.cdiv(B, BLOCK_B) * tl.cdiv(D, BLOCK_D)
    g_blocks = 0 if d_mu_g is None else tl.cdiv(C, BLOCK_C) * tl.cdiv(D, BLOCK_D)
    if block < features_blocks:
        if d_features is not None:
            write_features_gradient(
                d_features, f, head_g, head_f, block, B, C, D, USE_G, USE_F, SAME,
                PRECISION, BLOCK_B, BLOCK_D, BLOCK_K,
            )  # fmt: skip
    elif block < features_blocks + g_blocks:
        if d_mu_g is not None:
            write_mu_gradient(d_mu_g, f, head_g, block - features_blocks, B, C, D, PRECISION, BLOCK_C, BLOCK_D, BLOCK_K)
    else:
        if d_mu_f is not None:
            write_mu_gradient(
                d_mu_f, f, head_f, block - features_blocks - g_blocks, B, C, D, PRECISION, BLOCK_C, BLOCK_D, BLOCK_K
            )


class Head(NamedTuple):
    """What the gradient of one head's loss is made of."""

    mu: Tensor  # (C, D)
    slopes: Tensor  # (2, B, C)
    norm: Tensor  # (C,) of mu
    grad: Tensor | None  # () of this head's own loss


def launch_backward(
    features: Tensor,  # (B, D)
    norm: Tensor,  # (B,) of the features
    cos_rows: Tensor,  # (2, B)
    cos_columns: Tensor,  # (2, C)
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
    config = configs.backward(B, C, D, configs.precision(features, g.mu, f.mu))
    blocks = [triton.cdiv(B, config.BLOCK_B), *[triton.cdiv(C, config.BLOCK_C)] * 2]
    programs = sum(n for n, want in zip(blocks, wanted, strict=True) if want) * triton.cdiv(D, config.BLOCK_D)
    use_g, use_f = grad_loss is not None or g.grad is not None, grad_loss is not None or f.grad is not None
    of_g, of_f = (head[:3] if use else [None] * 3 for head, use in ((g, use_g), (f, use_f)))
    pairs = [x for pair in zip(of_g, of_f, strict=True) for x in pair]  # mu_g, mu_f, slopes_g, slopes_f, ...
    inputs = (features, *pairs[:4], norm, *pairs[4:], cos_rows, cos_columns, grad_loss, g.grad, f.grad)
    outputs = (d_features, d_mu_g, d_mu_f)
    launch(
        backward_kernel, (programs,), *inputs, *outputs,
        B, C, D, *features.stride(), *strides(of_g[0]), *strides(of_f[0]), tau,
        reads=inputs, writes=outputs, **vars(config),
    )  # fmt: skip
    return outputs
