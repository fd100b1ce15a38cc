"""Eqs. (4) and (3) in one call and one launch: prototypes and prior after a batch, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_labels, check_like, check_pair
from fastget.kernels.launch import empty, launch
from fastget.kernels.tile import add_class_sums, moved_prior
from fastget.kernels.wrap import Differentiable, Operator
from fastget.reference import PRIOR_FLOOR


@triton.jit(do_not_specialize=["B"])
def scatter_kernel(
    mu, pi,  # (C, D), (C,)
    features, labels,  # (B, D), (B,) int64
    P_bar,  # (C,)
    new_mu, new_pi, counts,  # (C, D), (C,), (C,) out
    B, C, D, mu_c, mu_d, features_b, features_d, labels_b, gamma_mu, gamma_pi, floor,
    ALL_C: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """new_mu[c] = (1 - gamma_mu) mu[c] + gamma_mu mean of f_b with y_b = c, mu[c] without any; new_pi by Eq. (3).

    d f_b = gamma_mu d new_mu[y_b] / counts[y_b], and the rest of the gradient: scatter_gradient. The last program has
    the prior, the others a tile of mu each, over all rows in order.
    """
    pid = tl.program_id(0)
    if pid < tl.num_programs(0) - 1:
        tiles_d = tl.cdiv(D, BLOCK_D)
        offs_c = pid // tiles_d * BLOCK_C + tl.arange(0, BLOCK_C)
        offs_d = pid % tiles_d * BLOCK_D + tl.arange(0, BLOCK_D)
        mask_c, mask_d = offs_c < C, offs_d < D
        total = tl.zeros((BLOCK_C, BLOCK_D), tl.float32)
        count = tl.zeros((BLOCK_C,), tl.float32)
        for b0 in range(0, B, BLOCK_B):
            offs_b = b0 + tl.arange(0, BLOCK_B)
            mask_b = offs_b < B
            y = tl.load(labels + offs_b.to(tl.int64) * labels_b, mask=mask_b, other=-1).to(tl.int32)
            total, count = add_class_sums(
                total, count, features, y, offs_b, mask_b, offs_c, offs_d, mask_d, features_b, features_d, PRECISION
            )
        mask = mask_c[:, None] & mask_d[None, :]
        c, d = offs_c[:, None].to(tl.int64), offs_d[None, :].to(tl.int64)
        old = tl.load(mu + c * mu_c + d * mu_d, mask=mask, other=0.0).to(tl.float32)
        new = (1.0 - gamma_mu) * old + gamma_mu * (total / tl.maximum(count, 1.0)[:, None])
        tl.store(new_mu + c * D + d, tl.where((count > 0)[:, None], new, old), mask=mask)
        if pid % tiles_d == 0:
            tl.store(counts + offs_c, count, mask=mask_c)
    else:
        offs_all = tl.arange(0, ALL_C)
        mask_all = offs_all < C
        old_pi = tl.load(pi + offs_all, mask=mask_all, other=0.0).to(tl.float32)
        mean = tl.load(P_bar + offs_all, mask=mask_all, other=0.0).to(tl.float32)
        tl.store(new_pi + offs_all, moved_prior(old_pi, mean, gamma_pi, floor), mask=mask_all)


def _scatter(
    mu: Tensor, pi: Tensor, features: Tensor, labels: Tensor, P_bar: Tensor, gamma_mu: float, gamma_pi: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    (B, D), C = features.shape, mu.shape[0]
    given, made = (mu, pi, features, labels, P_bar), (empty(mu, C, D), empty(mu, C), empty(mu, C))
    tile = configs.class_sums(B, C, D, features.dtype)
    programs = triton.cdiv(C, tile.BLOCK_C) * triton.cdiv(D, tile.BLOCK_D) + 1
    launch(
        scatter_kernel, (programs,), *given, *made, B, C, D, *mu.stride(), *features.stride(), labels.stride(0),
        gamma_mu, gamma_pi, floor, writes=made, ALL_C=configs.memory(C).ALL_C, **vars(tile),
    )  # fmt: skip
    return made


def _fake(mu: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    C, D = mu.shape
    new_mu, new_pi, counts = (mu.new_empty(shape, dtype=torch.float32) for shape in ((C, D), (C,), (C,)))
    return new_mu, new_pi, counts


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    mu, pi, features, labels, P_bar, *ctx.numbers = inputs
    ctx.dtypes = mu.dtype, pi.dtype, features.dtype, P_bar.dtype
    ctx.save_for_backward(pi, labels, P_bar, output[2])
    ctx.mark_non_differentiable(output[2])


def scatter_gradient(
    pi: Tensor, labels: Tensor, P_bar: Tensor, counts: Tensor, d_new_mu: Tensor, d_new_pi: Tensor,
    gamma_mu: float, gamma_pi: float, floor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Those to mu, pi, features and P_bar, in PyTorch: a gather and a few sums."""
    moved = (counts > 0)[:, None]
    d_mu = torch.where(moved, (1 - gamma_mu) * d_new_mu, d_new_mu)
    own, known = labels.clamp(0, len(counts) - 1).long(), (labels >= 0) & (labels < len(counts))
    mean = (gamma_mu * d_new_mu / counts.clamp_min(1)[:, None]).index_select(0, own)
    d_features = torch.where(known[:, None], mean, 0)
    if gamma_pi == 0:
        return d_mu, d_new_pi.clone(), d_features, torch.zeros_like(d_new_pi)
    mixed = (1 - gamma_pi) * pi.float() + gamma_pi * P_bar.float()
    share = mixed / mixed.sum()
    d_share = torch.where(share < floor, 0, d_new_pi)  # the floor has no slope
    d_mixed = (d_share - (d_share * share).sum()) / mixed.sum()
    return d_mu, (1 - gamma_pi) * d_mixed, d_features, gamma_pi * d_mixed


def _gradient_fake(pi: Tensor, labels: Tensor, P_bar: Tensor, counts: Tensor, d_new_mu: Tensor, *rest: Any) -> Any:
    C, D = d_new_mu.shape
    shapes = ((C, D), (C,), (len(labels), D), (C,))
    return tuple(d_new_mu.new_empty(shape) for shape in shapes)


def _backward(run: Any, ctx: Any, d_new_mu: Tensor, d_new_pi: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    d_mu, d_pi, d_features, d_P_bar = (
        d.to(dtype)
        for d, dtype in zip(run(*ctx.saved_tensors, d_new_mu, d_new_pi, *ctx.numbers), ctx.dtypes, strict=True)
    )
    return d_mu, d_pi, d_features, None, d_P_bar, None, None, None


_scatter_op = Differentiable(
    "scatter_update", _scatter, _fake, _setup,
    Operator("scatter_update_backward", scatter_gradient, _gradient_fake), _backward,
)  # fmt: skip


def scatter_update(
    mu: Tensor, pi: Tensor, features: Tensor, labels: Tensor, P_bar: Tensor,
    gamma_mu: float, gamma_pi: float, floor: float = PRIOR_FLOOR,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """reference.scatter_update(mu, pi, features, labels, P_bar, ...), in one launch: mu and pi after one batch."""
    check_pair(features, mu, "mu")
    check_like("pi", pi, (mu.shape[0],), mu.device)
    check_like("P_bar", P_bar, (mu.shape[0],), mu.device)
    check_labels("labels", labels, features.shape[0], features.device)
    new_mu, new_pi, _ = _scatter_op(
        mu, pi.contiguous(), features, labels, P_bar.contiguous(), float(gamma_mu), float(gamma_pi), float(floor)
    )
    return new_mu, new_pi
