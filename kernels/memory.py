"""The memory update: prototypes by Eq. (4), prior by Eq. (3), refused after a non-finite feature. One launch."""

from __future__ import annotations

from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_device, check_float, check_labels, check_like, check_pair
from fastget.kernels.equations.prototypes import PRIOR_FLOOR, move_prior, move_prototypes
from fastget.kernels.expectation import Expectation
from fastget.kernels.launch import interpreting, launch
from fastget.kernels.wrap import Operator


@triton.jit
def nonfinite(values, C, BC: tl.constexpr):
    """How many of (C,) values are NaN or infinite."""
    count = tl.zeros((BC,), tl.int32)
    for c0 in range(0, C, BC):
        classes = c0 + tl.arange(0, BC)
        x = tl.load(values + classes, mask=classes < C, other=0.0)
        count += (tl.abs(x) < float("inf")).to(tl.int32)
    return tl.cdiv(C, BC) * BC - tl.sum(count, 0)


@triton.jit(do_not_specialize=["B"])
def memory_kernel(
    mu,  # (C, D) in place
    pi,  # (C,) in place
    health,  # (2,) int64 in place
    counts, sums,  # (C,), (C, D): read unless LATE
    features, labels,  # (B, D), (B,) int64: read with LATE
    prior_sum,  # (C,)
    rows, bad_rows,  # ()
    skip,  # () read with SKIP
    B, C, D, mu_c, mu_d, sums_c, sums_d, stride_b, stride_d, stride_y,
    gamma_mu, gamma_pi, floor,
    LATE: tl.constexpr, SKIP: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    BC: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """mu[c] <- (1 - gamma_mu) mu[c] + gamma_mu sums[c] / counts[c] where counts[c] > 0; pi by Eq. (3). No gradient.

    The last program has the prior and `health`, the others a tile of mu each. No atomics: every element has one owner.
    """
    pid = tl.program_id(0)
    bad = (tl.load(bad_rows) > 0) | (nonfinite(prior_sum, C, BC) > 0)
    keep = bad
    if SKIP:
        keep = bad | (tl.load(skip) != 0)
    if pid < tl.num_programs(0) - 1:
        if keep == 0:
            move_prototypes(
                mu, mu, counts, sums, features, labels, pid, gamma_mu, B, C, D, mu_c, mu_d, mu_c, mu_d,
                sums_c, sums_d, stride_b, stride_d, stride_y, LATE, True, PRECISION, UPCAST, BN, BD, BK,
            )  # fmt: skip
    else:
        if keep == 0:
            move_prior(pi, prior_sum, pi, 1.0 / tl.load(rows), gamma_pi, floor, C, BC)
        updates = tl.load(health)
        refused = tl.load(health + 1)
        tl.store(health, updates + 1)
        tl.store(health + 1, tl.where(bad & (refused < 0), updates, refused))


def _update(
    mu: Tensor,
    pi: Tensor,
    health: Tensor,
    prior_sum: Tensor,
    rows: Tensor,
    bad_rows: Tensor,
    gamma_mu: float,
    gamma_pi: float,
    floor: float,
    counts: Optional[Tensor],  # noqa: UP045
    sums: Optional[Tensor],  # noqa: UP045
    features: Optional[Tensor],  # noqa: UP045
    labels: Optional[Tensor],  # noqa: UP045
    skip: Optional[Tensor],  # noqa: UP045
) -> None:
    (C, D), late = mu.shape, features is not None
    B = features.shape[0] if features is not None else 0
    config = configs.class_sums()

    def pointer(t: Tensor | None) -> Tensor:
        return mu if t is None else t  # an absent one is never read

    launch(
        memory_kernel,
        (triton.cdiv(C, config.BM) * triton.cdiv(D, config.BN) + 1,),
        mu, pi, health, pointer(counts), pointer(sums), pointer(features), pointer(labels),
        prior_sum, rows, bad_rows, pointer(skip),
        B, C, D, *mu.stride(), *(sums.stride() if sums is not None else (0, 0)),
        *(features.stride() if features is not None else (0, 0)), labels.stride(0) if labels is not None else 0,
        gamma_mu, gamma_pi, floor,
        reads=(mu, pi, health, counts, sums, features, labels, prior_sum, rows, bad_rows, skip),
        writes=(mu, pi, health),
        LATE=late, SKIP=skip is not None, PRECISION=config.precision, UPCAST=interpreting(),
        BC=configs.prior_tile(C), BN=config.BM, BD=config.BN, BK=config.BK,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip


_update_memory = Operator("update_memory", _update, lambda *args: None, mutates=("mu", "pi", "health"))


@torch.no_grad()
def update_memory_(
    mu: Tensor,  # (C, D), changed in place
    pi: Tensor,  # (C,), changed in place
    health: Tensor,  # (2,) int64, in place: updates so far, and the first that was refused (-1: none)
    e: Expectation,
    gamma_mu: float,
    gamma_pi: float,
    *,
    floor: float = PRIOR_FLOOR,
    features: Tensor | None = None,  # (B, D), with labels: class sums made here; else those of `e`
    labels: Tensor | None = None,  # (B,) int64
    skip: Tensor | None = None,  # (), not 0: leave the memory as it is (an overflow of the loss scaler)
) -> None:
    """reference.update_memory_(mu, pi, health, e, gamma_mu, gamma_pi, ...), in one launch.

    The memory: Eqs. (3) and (4). A batch with a non-finite feature or posterior leaves it untouched, and `health`
    notes it.
    """
    check_float("mu", mu, 2)
    device = mu.device
    for name, tensor in (("mu", mu), ("pi", pi)):
        if tensor.dtype != torch.float32:
            raise ValueError(f"{name} is the memory, which is float32, got {tensor.dtype}: keep it in float32")
    check_like("pi", pi, (mu.shape[0],), device)
    if health.dtype != torch.int64 or tuple(health.shape) != (2,):
        raise ValueError(f"health must be int64 of shape (2,), got {health.dtype} of shape {tuple(health.shape)}")
    for name, vector in (("pi", pi), ("health", health)):
        if not vector.is_contiguous():
            raise ValueError(f"{name} is changed in place and must be contiguous, got stride {vector.stride()}")
    check_like("prior_sum of the expectation", e.prior_sum, tuple(pi.shape), device)
    counts, sums = e.counts, e.sums
    if features is not None and labels is not None:
        check_pair(features, mu, "mu")
        check_labels("labels", labels, features.shape[0], device)
        counts = sums = None
    else:
        features = labels = None
        if sums is None or counts is None:
            raise ValueError("update_memory_() needs class sums: those of expectation(), or features and labels")
        check_like("sums of the expectation", sums, tuple(mu.shape), device)
        check_like("counts of the expectation", counts, tuple(pi.shape), device)
    if skip is not None:
        check_device("skip", skip, device)
    _update_memory(
        mu, pi, health, e.prior_sum, e.rows, e.bad_rows, float(gamma_mu), float(gamma_pi), float(floor),
        counts, sums, features, labels, skip,
    )  # fmt: skip
