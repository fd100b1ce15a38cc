"""The memory update: prototypes by Eq. (4), prior by Eq. (3), refused after a non-finite feature. One launch."""

from __future__ import annotations

from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_device, check_float, check_like
from fastget.kernels.expectation import Expectation
from fastget.kernels.launch import launch
from fastget.kernels.wrap import Operator

PRIOR_FLOOR = 1e-8  # the least entry of pi, so that its log is finite


@triton.jit
def nonfinite(values, C, BLOCK_C: tl.constexpr):
    """How many of (C,) values are NaN or infinite."""
    count = tl.zeros((BLOCK_C,), tl.int32)
    for c0 in range(0, C, BLOCK_C):
        classes = c0 + tl.arange(0, BLOCK_C)
        x = tl.load(values + classes, mask=classes < C, other=0.0)
        count += (tl.abs(x) < float("inf")).to(tl.int32)
    return tl.cdiv(C, BLOCK_C) * BLOCK_C - tl.sum(count, 0)


@triton.jit
def moved_prototypes(
    mu, sums, counts, block, gamma_mu, C, D, mu_c, mu_d, sums_c, sums_d, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Eq. (4) on one tile of mu: the old values, the new, where they lie in it, and which are moved."""
    blocks = tl.cdiv(D, BLOCK_D)
    classes = block // blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    depth = block % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    held = classes < C
    inside = held[:, None] & (depth < D)[None, :]
    wide_classes, wide_depth = classes[:, None].to(tl.int64), depth[None, :].to(tl.int64)
    count = tl.load(counts + classes, mask=held, other=0.0).to(tl.float32)[:, None]
    total = tl.load(sums + wide_classes * sums_c + wide_depth * sums_d, mask=inside, other=0.0).to(tl.float32)
    old = tl.load(mu + wide_classes * mu_c + wide_depth * mu_d, mask=inside, other=0.0).to(tl.float32)
    new = (1.0 - gamma_mu) * old + gamma_mu * (total / tl.maximum(count, 1.0))
    return old, new, wide_classes, wide_depth, inside, count > 0


@triton.jit
def move_prior(pi, P_bar, out, share, gamma_pi, floor, C, BLOCK_C: tl.constexpr):
    """Eq. (3), P_bar times `share`: the whole prior in one program."""
    total = tl.zeros((BLOCK_C,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        c = c0 + tl.arange(0, BLOCK_C)
        old = tl.load(pi + c, mask=c < C, other=0.0).to(tl.float32)
        new = tl.load(P_bar + c, mask=c < C, other=0.0).to(tl.float32) * share
        total += (1.0 - gamma_pi) * old + gamma_pi * new
    norm = tl.sum(total, 0)
    for c0 in range(0, C, BLOCK_C):
        c = c0 + tl.arange(0, BLOCK_C)
        old = tl.load(pi + c, mask=c < C, other=0.0).to(tl.float32)
        new = tl.load(P_bar + c, mask=c < C, other=0.0).to(tl.float32) * share
        mixed = ((1.0 - gamma_pi) * old + gamma_pi * new) / norm
        tl.store(out + c, tl.where(mixed < floor, floor, mixed), mask=c < C)  # a NaN stays one


@triton.jit
def memory_kernel(
    mu,  # (C, D) in place
    pi,  # (C,) in place
    health,  # (2,) int64 in place: updates so far, and the first that was refused
    sums, counts,  # (C, D), (C,)
    prior_sum,  # (C,)
    rows, bad_rows,  # ()
    skip,  # (), or None
    C, D, mu_c, mu_d, sums_c, sums_d, gamma_mu, gamma_pi, floor,
    PRIOR_C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """mu[c] <- (1 - gamma_mu) mu[c] + gamma_mu sums[c] / counts[c] where counts[c] > 0; pi by Eq. (3). No gradient.

    The last program has the prior and `health`, the others a tile of mu each. No atomics: every element has one owner.
    A class without a sample is not written at all.
    """
    pid = tl.program_id(0)
    bad = (tl.load(bad_rows) > 0) | (nonfinite(prior_sum, C, PRIOR_C) > 0)
    keep = bad
    if skip is not None:
        keep = bad | (tl.load(skip) != 0)
    if pid < tl.num_programs(0) - 1:
        if keep == 0:
            _, new, classes, depth, inside, moved = moved_prototypes(
                mu, sums, counts, pid, gamma_mu, C, D, mu_c, mu_d, sums_c, sums_d, BLOCK_C, BLOCK_D
            )
            tl.store(mu + classes * mu_c + depth * mu_d, new, mask=inside & moved)
    else:
        if keep == 0:
            move_prior(pi, prior_sum, pi, 1.0 / tl.load(rows), gamma_pi, floor, C, PRIOR_C)
        updates = tl.load(health)
        refused = tl.load(health + 1)
        tl.store(health, updates + 1)
        tl.store(health + 1, tl.where(bad & (refused < 0), updates, refused))


def run_update(
    mu: Tensor,
    pi: Tensor,
    health: Tensor,
    sums: Tensor,
    counts: Tensor,
    prior_sum: Tensor,
    rows: Tensor,
    bad_rows: Tensor,
    skip: Optional[Tensor],  # noqa: UP045  (the form that every torch's schema inference reads)
    gamma_mu: float,
    gamma_pi: float,
    floor: float,
) -> None:
    (C, D), config = mu.shape, configs.prototypes()
    tensors = (mu, pi, health, sums, counts, prior_sum, rows, bad_rows, skip)
    launch(
        memory_kernel, (triton.cdiv(C, config.BLOCK_C) * triton.cdiv(D, config.BLOCK_D) + 1,), *tensors,
        C, D, *mu.stride(), *sums.stride(), gamma_mu, gamma_pi, floor,
        reads=tensors, writes=(mu, pi, health), PRIOR_C=configs.prior_block(C), **vars(config),
    )  # fmt: skip


_update_memory = Operator("update_memory", run_update, lambda *args: None, mutates=("mu", "pi", "health"))


def check_update(mu: Tensor, pi: Tensor, health: Tensor, e: Expectation, skip: Tensor | None) -> tuple[Tensor, Tensor]:
    """ValueError if the memory cannot be updated with these; the class sums and counts."""
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
    if e.sums is None or e.counts is None:
        raise ValueError("update_memory_() needs class sums: call expectation() with labels, or with use_y_M=True")
    check_like("sums of the expectation", e.sums, tuple(mu.shape), device)
    check_like("counts of the expectation", e.counts, tuple(pi.shape), device)
    if skip is not None:
        check_device("skip", skip, device)
    return e.sums, e.counts


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
    skip: Tensor | None = None,  # (), not 0: leave the memory as it is (an overflow of the loss scaler)
) -> None:
    """reference.update_memory_(mu, pi, health, e, gamma_mu, gamma_pi, ...), in one launch.

    The memory: Eqs. (3) and (4). A batch with a non-finite feature or posterior leaves it untouched, and `health`
    notes it.
    """
    sums, counts = check_update(mu, pi, health, e, skip)
    _update_memory(
        mu, pi, health, sums, counts, e.prior_sum, e.rows, e.bad_rows, skip,
        float(gamma_mu), float(gamma_pi), float(floor),
    )  # fmt: skip
