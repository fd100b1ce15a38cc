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
from fastget.kernels.tile import product, store_gradient


@triton.jit
def incoming(grad_loss, grad_head):
    """The gradient that arrives at one head: its own loss's and that of the sum; 1 where neither is given."""
    grad = 1.0 if grad_loss is None and grad_head is None else 0.0
    if grad_loss is not None:
        grad += tl.load(grad_loss)
    if grad_head is not None:
        grad += tl.load(grad_head)
    return grad


@triton.jit
def add_head(
    total, slopes, factor, mu, mu_c, mu_d, offs_b, mask_b, offs_d, mask_d, C,
    SAME: tl.constexpr, PRECISION: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """total + sum_c slopes[b,c] mu_c, a tile of (rows, width), over all classes in order."""
    row = slopes + offs_b[:, None].to(tl.int64) * C
    d = offs_d[None, :].to(tl.int64) * mu_d
    for c0 in range(0, C, BLOCK_K):
        offs_c = c0 + tl.arange(0, BLOCK_K)
        mask_c = offs_c < C
        slope = tl.load(row + offs_c[None, :], mask=mask_b[:, None] & mask_c[None, :], other=0.0)
        if not SAME:
            slope = slope.to(tl.float32) * factor
        at, mask = mu + offs_c[:, None].to(tl.int64) * mu_c + d, mask_c[:, None] & mask_d[None, :]
        total = product(slope, tl.load(at, mask=mask, other=0.0), total, PRECISION)
    return total


@triton.jit
def write_mu_gradient(
    d_mu, mu, norm_mu, mu_c, mu_d, slopes, cos_columns, factor, features, features_b, features_d, block, B, C, D,
    PRECISION: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile of d_mu, over all rows in order."""
    tiles_d = tl.cdiv(D, BLOCK_D)
    offs_c = block // tiles_d * BLOCK_C + tl.arange(0, BLOCK_C)
    offs_d = block % tiles_d * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_c, mask_d = offs_c < C, offs_d < D
    total = tl.zeros((BLOCK_C, BLOCK_D), tl.float32)
    for b0 in range(0, B, BLOCK_K):
        offs_b = b0 + tl.arange(0, BLOCK_K)
        mask_b = offs_b < B
        at = slopes + (offs_b[:, None].to(tl.int64) + B) * C + offs_c[None, :]  # the half that is over |f_b|
        slope = tl.trans(tl.load(at, mask=mask_b[:, None] & mask_c[None, :], other=0.0))
        at_f = features + offs_b[:, None].to(tl.int64) * features_b + offs_d[None, :].to(tl.int64) * features_d
        total = product(slope, tl.load(at_f, mask=mask_b[:, None] & mask_d[None, :], other=0.0), total, PRECISION)
    total_cos = tl.load(cos_columns + offs_c, mask=mask_c, other=0.0) * factor
    store_gradient(d_mu, total * factor, total_cos, mu, norm_mu, offs_c, mask_c, offs_d, mask_d, mu_c, mu_d, D)


@triton.jit(do_not_specialize=["B"])
def backward_kernel(
    features, mu_g, mu_f,  # (B, D), (C, D), (C, D); None: that head is left out, also below
    slopes_g, slopes_f,  # (2, B, C): s / |mu_c|, s / |f_b| with s the slope of a row's loss at its logits
    norm, norm_g, norm_f,  # (B,), (C,), (C,)
    cos_rows,  # (2, B): sum_c s cos
    cos_columns,  # (2, C): sum_b s cos
    grad_loss, grad_g, grad_f,  # () incoming gradients; None: that loss has none
    d_features, d_mu_g, d_mu_f,  # out: (B, D), (C, D), (C, D); None: not asked for, or no path
    B, C, D, features_b, features_d, g_c, g_d, f_c, f_d,
    scale,  # 1 / tau, and over B where the loss is a mean
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A head's loss is scale tau sum_b l(S_b) with dl/dS = s: P - y of the cross-entropy. With d = grad scale s

    d_features_b = (sum_c d mu_c / |mu_c| - sum_c d cos f_b / |f_b|) / |f_b|, both heads added;
    d_mu_c       = (sum_b d f_b / |f_b|   - sum_b d cos mu_c / |mu_c|) / |mu_c|.

    Tiles of d_features (BLOCK_B, BLOCK_D) and of d_mu_g and d_mu_f (BLOCK_C, BLOCK_D) stand in one grid; each sums over
    its whole other axis in order, BLOCK_K at a time. A vector shorter than 1e-12 gets no gradient.
    """
    SAME: tl.constexpr = mu_g is None or mu_f is None or (grad_g is None and grad_f is None)  # one factor for all
    factor_g, factor_f = incoming(grad_loss, grad_g) * scale, incoming(grad_loss, grad_f) * scale
    block = tl.program_id(0)
    tiles_d = tl.cdiv(D, BLOCK_D)
    features_blocks = 0 if d_features is None else tl.cdiv(B, BLOCK_B) * tiles_d
    g_blocks = 0 if d_mu_g is None else tl.cdiv(C, BLOCK_C) * tiles_d
    if block < features_blocks:
        if d_features is not None:
            offs_b = block // tiles_d * BLOCK_B + tl.arange(0, BLOCK_B)
            offs_d = block % tiles_d * BLOCK_D + tl.arange(0, BLOCK_D)
            mask_b, mask_d = offs_b < B, offs_d < D
            total = tl.zeros((BLOCK_B, BLOCK_D), tl.float32)
            total_cos = tl.zeros((BLOCK_B,), tl.float32)
            if mu_g is not None:
                total = add_head(
                    total, slopes_g, factor_g, mu_g, g_c, g_d, offs_b, mask_b, offs_d, mask_d, C,
                    SAME, PRECISION, BLOCK_K,
                )  # fmt: skip
                total_cos += tl.load(cos_rows + offs_b, mask=mask_b, other=0.0) * factor_g
            if mu_f is not None:
                total = add_head(
                    total, slopes_f, factor_f, mu_f, f_c, f_d, offs_b, mask_b, offs_d, mask_d, C,
                    SAME, PRECISION, BLOCK_K,
                )  # fmt: skip
                total_cos += tl.load(cos_rows + B + offs_b, mask=mask_b, other=0.0) * factor_f
            if SAME:
                total = total * (factor_f if mu_g is None else factor_g)
            store_gradient(
                d_features, total, total_cos, features, norm, offs_b, mask_b, offs_d, mask_d, features_b, features_d, D
            )
    elif block < features_blocks + g_blocks:
        if d_mu_g is not None:
            write_mu_gradient(
                d_mu_g, mu_g, norm_g, g_c, g_d, slopes_g, cos_columns, factor_g, features, features_b, features_d,
                block - features_blocks, B, C, D, PRECISION, BLOCK_C, BLOCK_D, BLOCK_K,
            )  # fmt: skip
    else:
        if d_mu_f is not None:
            write_mu_gradient(
                d_mu_f, mu_f, norm_f, f_c, f_d, slopes_f, cos_columns + C, factor_f, features, features_b, features_d,
                block - features_blocks - g_blocks, B, C, D, PRECISION, BLOCK_C, BLOCK_D, BLOCK_K,
            )  # fmt: skip


class Head(NamedTuple):
    """What the gradient of one head's loss is made of."""

    mu: Tensor  # (C, D)
    slopes: Tensor  # (2, B, C)
    norm: Tensor  # (C,) of mu
    grad: Tensor | None = None  # () of this head's own loss


def launch_backward(
    features: Tensor,  # (B, D)
    norm: Tensor,  # (B,) of the features
    cos_rows: Tensor,  # (2, B)
    cos_columns: Tensor,  # (2, C)
    scale: float,
    grad_loss: Tensor | None,  # () of loss_g + loss_f
    g: Head | None,  # None: no gradient comes from this head
    f: Head | None,
    wanted: tuple[bool, bool, bool],  # which of d_features, d_mu_g, d_mu_f; at least one
    precision: str,  # of the products
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """torch.autograd.grad of the losses, in one launch; None for what is not wanted."""
    mu_g, slopes_g, norm_g, grad_g = g or (None,) * 4
    mu_f, slopes_f, norm_f, grad_f = f or (None,) * 4
    (B, D), C = features.shape, cos_columns.shape[1]
    config = configs.backward(B, C, D, precision)
    blocks = (triton.cdiv(B, config.BLOCK_B), *[triton.cdiv(C, config.BLOCK_C)] * 2)
    programs = sum(n for n, want in zip(blocks, wanted, strict=True) if want) * triton.cdiv(D, config.BLOCK_D)
    d_features, d_mu_g, d_mu_f = (
        torch.empty(x.shape, dtype=x.dtype, device=x.device) if want and x is not None else None
        for x, want in zip((features, mu_g, mu_f), wanted, strict=True)
    )
    outputs = (d_features, d_mu_g, d_mu_f)
    launch(
        backward_kernel, (programs,), features, mu_g, mu_f, slopes_g, slopes_f, norm, norm_g, norm_f,
        cos_rows, cos_columns, grad_loss, grad_g, grad_f, *outputs,
        B, C, D, *features.stride(), *strides(mu_g), *strides(mu_f), scale, writes=outputs, **vars(config),
    )  # fmt: skip
    return outputs
