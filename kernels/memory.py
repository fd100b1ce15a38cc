"""The memory: prototypes by Eq. (4), the prior by Eq. (3), and what the next step takes of it. One launch.

`renew_prior_` makes the latter alone, where pi was set or loaded: the same device function, the same bits.
"""

from __future__ import annotations

from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.checks import check_device, check_float, check_like
from fastget.kernels.launch import launch
from fastget.kernels.tile import moved_prior
from fastget.kernels.wrap import Operator
from fastget.reference import PRIOR_FLOOR, Expectation, Prior, Rule, paper_prior


@triton.jit
def write_prior(
    pi, t, offs_c, mask_c,  # all of pi and how far it is believed, in registers
    log_pi, exponent, power,  # out: (C,), (), ()
    C, wide, narrow, reach, share_floor, sharpening,
    TRUSTED: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """What the next step takes of pi: Eqs. (12), (13), (2') and (6'), or what the paper takes. A NaN stays one."""
    narrowness = tl.full((), 0.0, tl.float32)  # l
    share = pi
    if TRUSTED:
        p = tl.where(mask_c, t * pi + (1.0 - t) / C, 0.0)  # (12)
        exact = p.to(tl.float64)  # l magnifies the last digits of these sums
        short = tl.sum(tl.where(p == 0.0, 0.0, exact * tl.log(C * p)), 0)  # sum p log C p
        short -= (tl.sum(exact, 0) - 1.0) * tl.log(C * 1.0)  # log C - H(p): a floored pi sums to more than 1
        narrowness = (wide - tl.exp(-short.to(tl.float32))) / (wide - narrow)  # (13)
        narrowness = tl.where(narrowness < 0.0, 0.0, tl.where(narrowness > 1.0, 1.0, narrowness))
        if PARTIAL:
            narrowness = tl.full((), 1.0, tl.float32)
        ratio = reach * p / tl.sum(p * p, 0)
        ratio = tl.where(ratio > 1.0, 1.0, ratio)
        capped = tl.exp(tl.where(narrowness == 0.0, 0.0, narrowness * tl.log(ratio)))  # (2'), where 0^0 = 1
        capped = tl.where(mask_c, capped, 0.0)
        least = share_floor * (tl.sum(capped, 0) / C)
        capped = tl.where(mask_c, tl.where(capped < least, least, capped), 0.0)
        share = capped / tl.sum(capped, 0)
    tl.store(log_pi + offs_c, tl.log(share), mask=mask_c)
    tl.store(exponent, (1.0 - narrowness) / 2.0)  # (6')
    tl.store(power, 1.0 + sharpening * narrowness)


@triton.jit
def is_bad(estimate, bad_rows):
    """Whether a batch holds a feature or a posterior that is not finite."""
    finite = tl.abs(estimate) < float("inf")  # not so for a NaN
    return (tl.load(bad_rows) > 0) | (tl.sum(tl.where(finite, 0, 1), 0) > 0)


@triton.jit
def number(pointer, otherwise):
    """What a pointer holds; `otherwise` for None."""
    value = tl.full((), otherwise, tl.float32)
    if pointer is not None:
        value = tl.load(pointer).to(tl.float32)
    return value


@triton.jit
def memory_kernel(
    mu,  # (C, D) in place
    pi,  # (C,) in place
    health,  # (2,) int64 in place: updates so far, and the first that was refused
    log_pi, exponent, power,  # (C,), (), () out: what the next step takes of pi; None: nobody asks
    sums, counts,  # (C, D), (C,)
    prior_sum,  # (C,)
    rows, bad_rows,  # ()
    skip,  # (), or None
    trust,  # (), or None
    C, D, mu_c, mu_d, sums_c, sums_d, gamma_mu, gamma_pi, floor, wide, narrow, reach, share_floor, sharpening,
    TRUSTED: tl.constexpr, PARTIAL: tl.constexpr,
    ALL_C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """mu[c] <- (1 - gamma_mu) mu[c] + gamma_mu sums[c] / counts[c] where counts[c] > 0; pi by Eq. (3). No gradient.

    The last program has all of the prior and `health`, the others a tile of mu each. No atomics: every element has one
    owner. A class without a sample is not written at all. Each program asks for all that it needs before it looks at
    any of it, so that it waits once.
    """
    pid = tl.program_id(0)
    offs_all = tl.arange(0, ALL_C)
    mask_all = offs_all < C
    estimate = tl.load(prior_sum + offs_all, mask=mask_all, other=0.0)
    skipped = number(skip, 0.0)
    if pid < tl.num_programs(0) - 1:
        tiles_d = tl.cdiv(D, BLOCK_D)
        offs_c = pid // tiles_d * BLOCK_C + tl.arange(0, BLOCK_C)
        offs_d = pid % tiles_d * BLOCK_D + tl.arange(0, BLOCK_D)
        mask = (offs_c < C)[:, None] & (offs_d < D)[None, :]
        count = tl.load(counts + offs_c, mask=offs_c < C, other=0.0)[:, None]
        c, d = offs_c[:, None].to(tl.int64), offs_d[None, :].to(tl.int64)
        total = tl.load(sums + c * sums_c + d * sums_d, mask=mask, other=0.0)
        old = tl.load(mu + c * mu_c + d * mu_d, mask=mask, other=0.0)
        new = (1.0 - gamma_mu) * old + gamma_mu * (total / tl.maximum(count, 1.0))  # (4)
        keep = is_bad(estimate, bad_rows) | (skipped != 0)
        tl.store(mu + c * mu_c + d * mu_d, new, mask=mask & (tl.where(keep, 0.0, count) > 0))
    else:
        old_pi = tl.load(pi + offs_all, mask=mask_all, other=0.0)
        updates, refused = tl.load(health), tl.load(health + 1)
        t, all_rows = number(trust, 1.0), tl.load(rows)
        bad = is_bad(estimate, bad_rows)
        new_pi = moved_prior(old_pi, estimate / all_rows, gamma_pi, floor)
        new_pi = tl.where(bad | (skipped != 0), old_pi, new_pi)
        tl.store(pi + offs_all, new_pi, mask=mask_all)
        if log_pi is not None:
            write_prior(
                new_pi, t, offs_all, mask_all, log_pi, exponent, power, C, wide, narrow, reach, share_floor,
                sharpening, TRUSTED, PARTIAL,
            )  # fmt: skip
        tl.store(health, updates + 1)
        tl.store(health + 1, tl.where(bad & (refused < 0), updates, refused))


@triton.jit
def prior_kernel(
    pi,  # (C,)
    trust,  # (), or None
    log_pi, exponent, power,  # (C,), (), () out
    C, wide, narrow, reach, share_floor, sharpening,
    TRUSTED: tl.constexpr, PARTIAL: tl.constexpr, ALL_C: tl.constexpr,
):  # fmt: skip
    """What a step takes of pi, in one program. No gradient."""
    offs_c = tl.arange(0, ALL_C)
    old = tl.load(pi + offs_c, mask=offs_c < C, other=0.0)
    write_prior(
        old, number(trust, 1.0), offs_c, offs_c < C, log_pi, exponent, power, C, wide, narrow, reach, share_floor,
        sharpening, TRUSTED, PARTIAL,
    )  # fmt: skip


# --- operators ----------------------------------------------------------------------------------


# Optional, and not `| None`: the form that every torch's schema inference reads
def run_update(
    mu: Tensor, pi: Tensor, health: Tensor,
    log_pi: Optional[Tensor], exponent: Optional[Tensor], power: Optional[Tensor],  # noqa: UP045
    sums: Tensor, counts: Tensor, prior_sum: Tensor, rows: Tensor, bad_rows: Tensor,
    skip: Optional[Tensor], trust: Optional[Tensor],  # noqa: UP045
    gamma_mu: float, gamma_pi: float, floor: float, numbers: list[float],
) -> None:  # fmt: skip
    (C, D), config = mu.shape, configs.memory(mu.shape[0])
    tiles = triton.cdiv(C, config.BLOCK_C) * triton.cdiv(D, config.BLOCK_D)
    made, given = (log_pi, exponent, power), (sums, counts, prior_sum, rows, bad_rows, skip, trust)
    partial, *of_rule = numbers or NO_RULE
    launch(
        memory_kernel, (tiles + 1,), mu, pi, health, *made, *given, C, D, *mu.stride(), *sums.stride(),
        gamma_mu, gamma_pi, floor, *of_rule, writes=made, in_place=(mu, pi, health),
        TRUSTED=bool(numbers), PARTIAL=bool(partial), **vars(config),
    )  # fmt: skip


def run_renew(
    log_pi: Tensor, exponent: Tensor, power: Tensor, pi: Tensor,
    trust: Optional[Tensor],  # noqa: UP045
    numbers: list[float],
) -> None:  # fmt: skip
    config, made = configs.memory(len(pi)), (log_pi, exponent, power)
    partial, *of_rule = numbers or NO_RULE
    launch(
        prior_kernel, (1,), pi, trust, *made, len(pi), *of_rule, writes=made,
        TRUSTED=bool(numbers), PARTIAL=bool(partial), ALL_C=config.ALL_C, num_warps=config.num_warps,
    )  # fmt: skip


PRIOR = ("log_pi", "exponent", "power")
NO_RULE = [0.0] * 6
_update_memory = Operator("update_memory", run_update, lambda *args: None, mutates=("mu", "pi", "health", *PRIOR))
_renew_prior = Operator("renew_prior", run_renew, lambda *args: None, mutates=PRIOR)


# --- checks -------------------------------------------------------------------------------------


def numbers_of(rule: Rule) -> list[float]:
    """A rule as the kernels take it: partial, wide, narrow, reach, floor and sharpening; nothing for the paper's."""
    if rule is not paper_prior and not hasattr(rule, "numbers"):
        raise ValueError(
            f"rule must be reference.paper_prior or a fastget.methods.get.prior.PriorRule, got {rule!r}: the kernels "
            "know no other; use backend='reference'"
        )
    return [float(x) for x in getattr(rule, "numbers", None) or ()]


def check_in_place(name: str, x: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Part of the memory: float32, contiguous, of this shape."""
    if x.dtype != torch.float32:
        raise ValueError(f"{name} is the memory, which is float32, got {x.dtype}: keep it in float32")
    check_like(name, x, shape, device)
    if not x.is_contiguous():
        raise ValueError(f"{name} is changed in place and must be contiguous, got stride {x.stride()}")


def check_prior(prior: Prior, trust: Tensor | None, C: int, device: torch.device) -> None:
    check_in_place("prior.log_pi", prior.log_pi, (C,), device)
    check_in_place("prior.exponent", prior.exponent, (), device)
    check_in_place("prior.power", prior.power, (), device)
    if trust is not None:
        check_in_place("trust", trust, (), device)


def check_update(mu: Tensor, pi: Tensor, health: Tensor, e: Expectation, skip: Tensor | None) -> None:
    """ValueError if the memory cannot be updated with these."""
    check_float("mu", mu, 2)
    device = mu.device
    if mu.dtype != torch.float32:
        raise ValueError(f"mu is the memory, which is float32, got {mu.dtype}: keep it in float32")
    check_in_place("pi", pi, (mu.shape[0],), device)
    if health.dtype != torch.int64 or tuple(health.shape) != (2,) or not health.is_contiguous():
        raise ValueError(
            f"health must be int64 of shape (2,), contiguous, got {health.dtype} of shape {tuple(health.shape)}"
        )
    check_like("prior_sum of the expectation", e.prior_sum, tuple(pi.shape), device)
    check_like("sums of the expectation", e.sums, tuple(mu.shape), device)
    check_like("counts of the expectation", e.counts, tuple(pi.shape), device)
    if skip is not None:
        check_device("skip", skip, device)


# --- public -------------------------------------------------------------------------------------


@torch.no_grad()
def update_memory_(
    mu: Tensor, pi: Tensor,  # changed in place, as the next
    health: Tensor,  # (2,) int64: updates so far, and the first that was refused (-1: none)
    e: Expectation, gamma_mu: float, gamma_pi: float, *, floor: float = PRIOR_FLOOR,
    skip: Tensor | None = None,  # (), not 0: leave the memory as it is (an overflow of the loss scaler)
    prior: Prior | None = None,  # in place: what the next step takes of pi
    rule: Rule = paper_prior,
    trust: Tensor | None = None,  # () for the rule; None: 1
) -> None:  # fmt: skip
    """reference.update_memory_(mu, pi, health, e, gamma_mu, gamma_pi, ...), in one launch.

    Eqs. (3) and (4), and what follows from pi. A batch with a non-finite feature or posterior leaves the memory
    untouched, and `health` notes it.
    """
    check_update(mu, pi, health, e, skip)
    if prior is not None:
        check_prior(prior, trust, len(pi), mu.device)
    log_pi, exponent, power = prior or (None, None, None)
    _update_memory(
        mu, pi, health, log_pi, exponent, power, e.sums, e.counts, e.prior_sum, e.rows, e.bad_rows, skip, trust,
        float(gamma_mu), float(gamma_pi), float(floor), numbers_of(rule),
    )  # fmt: skip


@torch.no_grad()
def renew_prior_(prior: Prior, pi: Tensor, rule: Rule = paper_prior, trust: Tensor | None = None) -> None:
    """prior <- rule(pi, trust), in place: the bits that `update_memory_` would write."""
    check_in_place("pi", pi, (len(pi),), pi.device)
    check_prior(prior, trust, len(pi), pi.device)
    _renew_prior(*prior, pi, trust, numbers_of(rule))
