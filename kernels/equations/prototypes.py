"""Eqs. (3) and (4) by themselves: class sums, prototypes, prior."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_constant, check_device, check_float, check_labels, check_like
from fastget.kernels.launch import launch
from fastget.kernels.memory import PRIOR_FLOOR, move_prior, moved_prototypes
from fastget.kernels.statistics import launch_class_sums
from fastget.kernels.wrap import Operator


@triton.jit
def prototypes_kernel(
    mu,  # (C, D)
    sums,  # (C, D)
    counts,  # (C,)
    out,  # (C, D) out
    C, D, mu_c, mu_d, sums_c, sums_d, gamma_mu,
    BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """out[c] = (1 - gamma_mu) mu[c] + gamma_mu sums[c] / counts[c], or mu[c] where counts[c] = 0. No gradient."""
    old, new, classes, depth, inside, moved = moved_prototypes(
        mu, sums, counts, tl.program_id(0), gamma_mu, C, D, mu_c, mu_d, sums_c, sums_d, BLOCK_C, BLOCK_D
    )
    tl.store(out + classes * D + depth, tl.where(moved, new, old), mask=inside)


@triton.jit
def prior_kernel(
    pi, P_bar,  # (C,)
    out,  # (C,) out
    C, gamma_pi, floor,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out = max(((1 - gamma_pi) pi + gamma_pi P_bar) / its sum, floor). No gradient."""
    move_prior(pi, P_bar, out, 1.0, gamma_pi, floor, C, BLOCK_C)


def _class_sums(features: Tensor, y_M: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    return launch_class_sums(features, y_M, num_classes)


def _class_sums_fake(features: Tensor, y_M: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    wide = features.new_empty
    return wide((num_classes, features.shape[1]), dtype=torch.float32), wide((num_classes,), dtype=torch.float32)


def _prototypes(mu: Tensor, sums: Tensor, counts: Tensor, gamma_mu: float) -> Tensor:
    (C, D), config = mu.shape, configs.prototypes()
    out = torch.empty((C, D), dtype=torch.float32, device=mu.device)
    launch(
        prototypes_kernel, (triton.cdiv(C, config.BLOCK_C) * triton.cdiv(D, config.BLOCK_D),),
        mu, sums, counts, out, C, D, *mu.stride(), *sums.stride(), gamma_mu,
        reads=(mu, sums, counts), writes=(out,), **vars(config),
    )  # fmt: skip
    return out


def _prior(pi: Tensor, P_bar: Tensor, gamma_pi: float, floor: float) -> Tensor:
    C, out = len(pi), torch.empty(pi.shape, dtype=torch.float32, device=pi.device)
    launch(
        prior_kernel, (1,), pi, P_bar, out, C, gamma_pi, floor,
        reads=(pi, P_bar), writes=(out,), BLOCK_C=configs.prior_block(C),
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
