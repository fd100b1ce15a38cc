"""Eqs. (3) and (4) by themselves: class sums, prototypes, prior; and the device functions of the memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_constant, check_device, check_float, check_labels, check_like
from fastget.kernels.launch import launch
from fastget.kernels.statistics import launch_class_sums
from fastget.kernels.tile import add_class_sums
from fastget.kernels.wrap import Operator

PRIOR_FLOOR = 1e-8  # the least entry of pi, so that its log is finite


@triton.jit
def move_prototypes(
    mu, out, counts, sums, features, labels, block, gamma_mu, B, C, D, mu_c, mu_d, out_c, out_d,
    sums_c, sums_d, stride_b, stride_d, stride_y,
    LATE: tl.constexpr, IN_PLACE: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Eq. (4) on one tile of mu. In place, a class without a sample is not written at all."""
    blocks = tl.cdiv(D, BD)
    classes = block // blocks * BN + tl.arange(0, BN)
    depth = block % blocks * BD + tl.arange(0, BD)
    held, deep = classes < C, depth < D
    inside = held[:, None] & deep[None, :]
    wide_classes, wide_depth = classes[:, None].to(tl.int64), depth[None, :].to(tl.int64)
    if LATE:
        total = tl.zeros((BN, BD), tl.float32)
        count = tl.zeros((BN,), tl.float32)
        for b0 in range(0, B, BK):
            rows = b0 + tl.arange(0, BK)
            live = rows < B
            y = tl.load(labels + rows.to(tl.int64) * stride_y, mask=live, other=-1).to(tl.int32)
            total, count = add_class_sums(
                features, y, rows, live, classes, depth, deep, stride_b, stride_d, total, count, PRECISION, UPCAST
            )
    else:
        count = tl.load(counts + classes, mask=held, other=0.0).to(tl.float32)
        at = sums + wide_classes * sums_c + wide_depth * sums_d
        total = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    count = count[:, None]
    old = tl.load(mu + wide_classes * mu_c + wide_depth * mu_d, mask=inside, other=0.0).to(tl.float32)
    new = (1.0 - gamma_mu) * old + gamma_mu * (total / tl.maximum(count, 1.0))
    at = out + wide_classes * out_c + wide_depth * out_d
    if IN_PLACE:
        tl.store(at, new, mask=inside & (count > 0))
    else:
        tl.store(at, tl.where(count > 0, new, old), mask=inside)


@triton.jit
def move_prior(pi, P_bar, out, share, gamma_pi, floor, C, BN: tl.constexpr):
    """Eq. (3), P_bar times `share`: the whole prior in one program."""
    total = tl.zeros((BN,), tl.float32)
    for c0 in range(0, C, BN):
        c = c0 + tl.arange(0, BN)
        old = tl.load(pi + c, mask=c < C, other=0.0).to(tl.float32)
        new = tl.load(P_bar + c, mask=c < C, other=0.0).to(tl.float32) * share
        total += (1.0 - gamma_pi) * old + gamma_pi * new
    norm = tl.sum(total, 0)
    for c0 in range(0, C, BN):
        c = c0 + tl.arange(0, BN)
        old = tl.load(pi + c, mask=c < C, other=0.0).to(tl.float32)
        new = tl.load(P_bar + c, mask=c < C, other=0.0).to(tl.float32) * share
        mixed = ((1.0 - gamma_pi) * old + gamma_pi * new) / norm
        tl.store(out + c, tl.where(mixed < floor, floor, mixed), mask=c < C)  # a NaN stays one


@triton.jit
def prototypes_kernel(
    mu,  # (C, D)
    sums,  # (C, D)
    counts,  # (C,)
    out,  # (C, D) out
    C, D, mu_c, mu_d, sums_c, sums_d, gamma_mu,
    BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """out[c] = (1 - gamma_mu) mu[c] + gamma_mu sums[c] / counts[c], or mu[c] where counts[c] = 0. No gradient."""
    move_prototypes(
        mu, out, counts, sums, mu, mu, tl.program_id(0), gamma_mu, 0, C, D, mu_c, mu_d, D, 1,
        sums_c, sums_d, 0, 0, 0, False, False, "ieee", False, BN, BD, 16,
    )  # fmt: skip


@triton.jit
def prior_kernel(
    pi, P_bar,  # (C,)
    out,  # (C,) out
    C, gamma_pi, floor,
    BC: tl.constexpr,
):  # fmt: skip
    """out = max(((1 - gamma_pi) pi + gamma_pi P_bar) / its sum, floor). No gradient."""
    move_prior(pi, P_bar, out, 1.0, gamma_pi, floor, C, BC)


def _class_sums(features: Tensor, y_M: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    return launch_class_sums(features, y_M, num_classes)


def _class_sums_fake(features: Tensor, y_M: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    wide = features.new_empty
    return wide((num_classes, features.shape[1]), dtype=torch.float32), wide((num_classes,), dtype=torch.float32)


def _prototypes(mu: Tensor, sums: Tensor, counts: Tensor, gamma_mu: float) -> Tensor:
    (C, D), config = mu.shape, configs.class_sums()
    out = torch.empty((C, D), dtype=torch.float32, device=mu.device)
    launch(
        prototypes_kernel,
        (triton.cdiv(C, config.BM) * triton.cdiv(D, config.BN),),
        mu, sums, counts, out, C, D, *mu.stride(), *sums.stride(), gamma_mu,
        reads=(mu, sums, counts), writes=(out,), BN=config.BM, BD=config.BN, num_warps=config.num_warps,
    )  # fmt: skip
    return out


def _prior(pi: Tensor, P_bar: Tensor, gamma_pi: float, floor: float) -> Tensor:
    out = torch.empty(pi.shape, dtype=torch.float32, device=pi.device)
    BC = configs.prior_tile(len(pi))
    launch(
        prior_kernel, (1,), pi, P_bar, out, len(pi), gamma_pi, floor, reads=(pi, P_bar), writes=(out,), BC=BC
    )  # fmt: skip
    return out


def _like_first(first: Tensor, *rest: object) -> Tensor:
    return first.new_empty(first.shape, dtype=torch.float32)


_class_sums_op = Operator("class_sums", _class_sums, _class_sums_fake)
_prototypes_op = Operator("update_prototypes", _prototypes, _like_first)
_prior_op = Operator("update_prior", _prior, _like_first)


def class_sums(
    features: Tensor,  # (B, D)
    y_M: Tensor,  # (B,) int64
    num_classes: int,
) -> tuple[Tensor, Tensor]:
    """one_hot(y_M).T @ features, one_hot(y_M).sum(0): the sums behind Eq. (4). (C, D), (C,). No gradient."""
    check_float("features", features, 2)
    check_labels("y_M", y_M, features.shape[0], features.device)
    check_constant("class_sums", features)
    sums, counts = _class_sums_op(features, y_M, num_classes)
    return sums, counts


def update_prototypes(
    mu: Tensor,  # (C, D)
    sums: Tensor,  # (C, D)
    counts: Tensor,  # (C,)
    gamma_mu: float,
) -> Tensor:
    """torch.where(counts > 0, (1 - gamma_mu) * mu + gamma_mu * sums / counts, mu): Eq. (4). (C, D). No gradient."""
    check_float("mu", mu, 2)
    check_like("sums", sums, tuple(mu.shape), mu.device)
    if counts.shape != mu.shape[:1]:
        raise ValueError(f"counts must have shape ({mu.shape[0]},), got {tuple(counts.shape)}")
    check_device("counts", counts, mu.device)
    check_constant("update_prototypes", mu, sums, counts)
    out: Tensor = _prototypes_op(mu, sums, counts.contiguous(), float(gamma_mu))
    return out


def update_prior(
    pi: Tensor,  # (C,)
    P_bar: Tensor,  # (C,)
    gamma_pi: float,
    floor: float = PRIOR_FLOOR,
) -> Tensor:
    """((1 - gamma_pi) * pi + gamma_pi * P_bar), divided by its sum, .clamp_min(floor): Eq. (3). (C,). No gradient."""
    check_float("pi", pi, 1)
    check_like("P_bar", P_bar, tuple(pi.shape), pi.device)
    check_constant("update_prior", pi, P_bar)
    out: Tensor = _prior_op(pi.contiguous(), P_bar.contiguous(), float(gamma_pi), float(floor))
    return out
