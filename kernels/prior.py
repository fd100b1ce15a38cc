"""The prior that the posteriors of Eq. (2) take: pi itself, or what Eqs. (2*), (2') and (2") make of it; and the power
that its spread gives to the column sums of Eq. (6), (6').

Device functions, inlined: a tile of classes needs sums over all of them, which each program makes again from (C,).
"""

from __future__ import annotations

import triton
import triton.language as tl

# what stands for pi in a posterior
AS_IT_IS = tl.constexpr(0)
SHRUNK = tl.constexpr(1)  # Eq. (2*)
CAPPED = tl.constexpr(2)  # Eq. (2')
GATED = tl.constexpr(3)  # Eq. (2")
CAP_FLOOR = tl.constexpr(1e-3)  # of a class's fair share 1 / C
CAP_GATE = tl.constexpr(0.85)  # of C: what exp(H(pi)) must be below
GATED_REACH = tl.constexpr(1.5)  # Eq. (2")'s for Eq. (2')'s 2
REBALANCE_GATE = tl.constexpr(0.65)  # of C: where nothing is rebalanced any more, Eq. (6')
PRIOR_FORMS = tl.constexpr(3)  # the bits of a form that say what stands for pi
FADING = tl.constexpr(4)  # and the one that says whether Eq. (6') stands for Eq. (6)


def cap_form(gate: bool) -> int:
    """Which of the two caps."""
    return int(GATED.value if gate else CAPPED.value)


@triton.jit
def spread(pi, C, BLOCK_C: tl.constexpr):
    """exp(H(pi)) / C, 1 for a uniform pi, and sum_c pi_c^2."""
    entropy = tl.zeros((BLOCK_C,), tl.float32)
    square = tl.zeros((BLOCK_C,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        c = c0 + tl.arange(0, BLOCK_C)
        p = tl.load(pi + c, mask=c < C, other=1.0).to(tl.float32)
        entropy -= tl.where(p > 0, p * tl.log(tl.where(p > 0, p, 1.0)), 0.0)
        square += tl.where(c < C, p * p, 0.0)
    return tl.exp(tl.sum(entropy, 0)) / C, tl.sum(square, 0)


@triton.jit
def faded(pi, C, BLOCK_C: tl.constexpr):
    """Eq. (6'): the power of the column sums, 1/2 from CAP_GATE on, 0 up to REBALANCE_GATE."""
    even, square = spread(pi, C, BLOCK_C)
    part = (even - REBALANCE_GATE) / (CAP_GATE - REBALANCE_GATE) + 0.0 * square  # a NaN, which the entropy passes over
    part = tl.where(part < 0.0, 0.0, tl.where(part > 1.0, 1.0, part))
    return 0.5 * part


@triton.jit
def shrunk(pi, log_pi, C, BLOCK_C: tl.constexpr):
    """Eq. (2*): beta log pi - log sum pi^beta, beta = 1 - exp(H(pi)) / C."""
    even, _ = spread(pi, C, BLOCK_C)
    beta = 1.0 - even
    powers = tl.zeros((BLOCK_C,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        c = c0 + tl.arange(0, BLOCK_C)
        p = tl.load(pi + c, mask=c < C, other=1.0).to(tl.float32)
        powers += tl.where(c < C, tl.exp(beta * tl.log(p)), 0.0)
    return beta * log_pi - tl.log(tl.sum(powers, 0))


@triton.jit
def discounted(p, typical, beta):
    """min(1, p / typical)^beta: 0 for a p of 0, and NaN stays NaN."""
    ratio = p / typical
    ratio = tl.where(ratio > 1.0, 1.0, ratio)
    return tl.where(ratio == 0.0, 0.0, tl.exp(beta * tl.log(tl.where(ratio == 0.0, 1.0, ratio))))


@triton.jit
def floored(share, floor):
    """max(share, floor), and NaN stays NaN."""
    return tl.where(share < floor, floor, share)


@triton.jit
def capped(pi, tile, C, gate, reach, steepest, BLOCK_C: tl.constexpr):
    """Eq. (2') of one tile of pi, or Eq. (2"), by its numbers: log of u / sum u, floored, renormalised;
    u = min(1, reach pi / sum pi^2)^beta."""
    even, square = spread(pi, C, BLOCK_C)
    beta = 4.0 / gate * tl.maximum(1.0 - even / gate, 0.0)
    beta = tl.where(beta > steepest, steepest, beta)
    typical = square / reach
    floor = CAP_FLOOR / C
    total = tl.zeros((BLOCK_C,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        c = c0 + tl.arange(0, BLOCK_C)
        p = tl.load(pi + c, mask=c < C, other=1.0).to(tl.float32)
        total += tl.where(c < C, discounted(p, typical, beta), 0.0)
    whole = tl.sum(total, 0)
    total = tl.zeros((BLOCK_C,), tl.float32)
    for c0 in range(0, C, BLOCK_C):
        c = c0 + tl.arange(0, BLOCK_C)
        p = tl.load(pi + c, mask=c < C, other=1.0).to(tl.float32)
        total += tl.where(c < C, floored(discounted(p, typical, beta) / whole, floor), 0.0)
    share = floored(discounted(tile, typical, beta) / whole, floor)
    return tl.log(share / tl.sum(total, 0))


@triton.jit
def log_prior_tile(prior, classes, held, C, form, IS_LOG: tl.constexpr, BLOCK_C: tl.constexpr):
    """The log prior of one tile of classes: log pi, or what `form` puts in its place."""
    log_pi = tl.zeros((BLOCK_C,), tl.float32)
    if prior is not None:
        log_pi = tl.load(prior + classes, mask=held, other=1.0).to(tl.float32)
        if not IS_LOG:
            pi = log_pi
            log_pi = tl.log(pi)
            if form == SHRUNK:
                log_pi = shrunk(prior, log_pi, C, BLOCK_C)
            if form >= CAPPED:
                gate, reach = tl.where(form == GATED, CAP_GATE, 1.0), tl.where(form == GATED, GATED_REACH, 2.0)
                steepest = tl.where(form == GATED, 1.0, float("inf"))
                log_pi = capped(prior, pi, C, gate, reach, steepest, BLOCK_C)
    return log_pi
