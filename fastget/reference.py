"""GeT's equations in plain PyTorch: one function per equation, then the phases of a step made of them.

This is the path that every kernel is verified against, and the one that runs on a CPU.
Equation numbers are those of fastget/METHOD.md.

Shapes: B images in a target batch, C classes, D feature width.
Half-precision input is computed in float32; float64 stays float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EPS = 1e-12  # the least norm that a cosine divides by
PRIOR_FLOOR = 1e-8  # the least entry of pi, so that its log is finite
CAP_FLOOR = 1e-3  # (2'): the least entry, of a class's fair share 1 / C
CAP_GATE = 0.85  # (2"): the prior is left out while exp(H(pi)) is at least this share of C
GATED_REACH = 1.5  # (2"): what stands for (2')'s 2, so that classes count in full from 1 / 1.5 of the typical share on
REBALANCE_GATE = 0.65  # (6'): no rebalancing where it is at most this share; in full from CAP_GATE on
SHARPENING = 3.0  # (6'): what is added to P's power in Q where nothing is rebalanced


# --- helpers of the equations ------------------------------------------------------------------


def _wide(x: Tensor) -> Tensor:
    """Half precision to float32; float32 and float64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit(x: Tensor) -> Tensor:
    """Rows of `x` divided by max(norm, 1e-12). A row shorter than that gets no gradient: its slope would be 1e12."""
    x = _wide(x)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    y = x / norm.clamp_min(EPS)
    return torch.where(norm >= EPS, y, y.detach())


def cosine(features: Tensor, prototypes: Tensor) -> Tensor:
    """cos(features[b], prototypes[c]), (B, C); 0 for a zero vector."""
    f, p = unit(features), unit(prototypes)
    dtype = torch.promote_types(f.dtype, p.dtype)
    return f.to(dtype) @ p.to(dtype).T


def first_argmax(scores: Tensor) -> Tensor:
    """argmax over the last axis, the lowest index on a tie. (B, C) -> (B,) int64."""
    index = torch.arange(scores.shape[-1], device=scores.device)
    tied = scores == scores.amax(-1, keepdim=True)
    return torch.where(tied, index, scores.shape[-1] - 1).amin(-1)


def _one_hot(y: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """(B,) int64 -> (B, C), without the host sync of torch's own one_hot."""
    return (y[:, None] == torch.arange(num_classes, device=y.device)).to(dtype)


def _cross_entropy(labels: Tensor, log_P: Tensor) -> Tensor:
    """-sum_c labels log P, mean over rows; a class of label 0 adds nothing, also where its prior is 0."""
    return -torch.where(labels == 0, 0, labels * log_P).sum(1).mean()


# --- the equations -----------------------------------------------------------------------------


def posterior(
    features: Tensor,  # (B, D)
    prototypes: Tensor,  # (C, D)
    log_prior: Tensor,  # (C,)
    tau: float,
) -> Tensor:
    """Eq. (2): softmax over c of log_prior[c] + cos(features[b], prototypes[c]) / tau. (B, C)."""
    return torch.softmax(log_prior + cosine(features, prototypes) / tau, dim=-1)


def shrink_prior(
    pi: Tensor,  # (C,)
) -> Tensor:
    """Eq. (2*): pi^beta, renormalised, beta = 1 - exp(H(pi)) / C: a prior near uniform is left out. (C,)."""
    pi = _wide(pi)
    entropy = -torch.xlogy(pi, pi).sum()
    shrunk = pi.pow(1 - entropy.exp() / pi.numel())
    return shrunk / shrunk.sum()


def cap_prior(
    pi: Tensor,  # (C,)
    gate: bool = False,  # (2")
) -> Tensor:
    """Eq. (2'): min(1, 2 pi_c / sum pi^2)^beta, renormalised, floored, renormalised; beta = 4 (1 - exp(H(pi)) / C). A
    class with half the typical share counts in full, a rarer one the less, the more skewed pi is. By Eq. (2") only
    where the classes are in effect fewer than e = CAP_GATE of all, from two thirds of the typical share on, and never
    by more than pi itself: GATED_REACH for 2, beta = 4 / e * (1 - exp(H(pi)) / (e C)) within 0 and 1. (C,)."""
    pi = _wide(pi)
    entropy, even = -torch.xlogy(pi, pi).sum(), CAP_GATE if gate else 1.0
    beta = (4 / even * (1 - entropy.exp() / (even * pi.numel()))).clamp(0, 1 if gate else None)
    capped = ((GATED_REACH if gate else 2) * pi / (pi * pi).sum()).clamp_max(1).pow(beta)
    floored = (capped / capped.sum()).clamp_min(CAP_FLOOR / pi.numel())
    return floored / floored.sum()


def update_prior(
    pi: Tensor,  # (C,)
    P_bar: Tensor,  # (C,)
    gamma_pi: float,
    floor: float = PRIOR_FLOOR,
) -> Tensor:
    """Eq. (3): (1 - gamma_pi) * pi + gamma_pi * P_bar, renormalised, then floored. (C,)."""
    mixed = (1 - gamma_pi) * _wide(pi) + gamma_pi * _wide(P_bar)
    return (mixed / mixed.sum()).clamp_min(floor)


def nearest_histogram(
    features: Tensor,  # (B, D)
    mu: Tensor,  # (C, D)
) -> Tensor:
    """Eq. (3*): the share of the batch whose nearest prototype by cosine is c; the lowest c on a tie. (C,)."""
    cos = cosine(features, mu)
    return _one_hot(first_argmax(cos), mu.shape[0], cos.dtype).mean(0)


def agreeing_votes(
    features: Tensor,  # (N, D)
    mu: Tensor,  # (C, D)
    source_means: Tensor,  # (C, D)
) -> Tensor:
    """Eq. (3'): how many images have c as their nearest in mu and in source_means too, by cosine; the lowest c on a
    tie. (C,)."""
    cos = cosine(features, mu)
    nearest, of_source = first_argmax(cos), first_argmax(cosine(features, source_means))
    return (_one_hot(nearest, mu.shape[0], cos.dtype) * (nearest == of_source)[:, None]).sum(0)


def class_sums(
    features: Tensor,  # (B, D)
    y_M: Tensor,  # (B,) int64
    num_classes: int,
) -> tuple[Tensor, Tensor]:
    """The sums behind Eq. (4): each class's features summed, and its count. (C, D), (C,)."""
    features = _wide(features)
    hot = _one_hot(y_M, num_classes, features.dtype)
    return hot.T @ features, hot.sum(0)


def update_prototypes(
    mu: Tensor,  # (C, D)
    sums: Tensor,  # (C, D)
    counts: Tensor,  # (C,)
    gamma_mu: float,
) -> Tensor:
    """Eq. (4): (1 - gamma_mu) * mu[c] + gamma_mu * sums[c] / counts[c]; a class with none is left as it was. (C, D)."""
    counts = counts[:, None].to(sums.dtype)
    moved = (1 - gamma_mu) * mu + gamma_mu * (sums / counts.clamp_min(1))
    return torch.where(counts > 0, moved, mu)


def structure_loss(
    Q: Tensor,  # (B, C)
    P: Tensor,  # (B, C)
) -> Tensor:
    """Eq. (5): KL(Q || P) / B + sum_c Qbar_c log Qbar_c, Qbar the batch mean of Q. A scalar."""
    Q, P = _wide(Q), _wide(P)
    held = Q > 0  # where Q is 0 the term is 0, whatever P is, and so is its gradient
    ratio = torch.where(held, Q, 1).log() - torch.where(held, P, 1).log()
    Q_bar = Q.mean(0)
    kl = (Q * ratio).sum() / len(Q)
    return kl + torch.xlogy(Q_bar, Q_bar).sum()


def rebalance(
    P: Tensor,  # (B, C)
    colsum: Tensor | None = None,  # (C,), over the global batch; None: over these rows
) -> Tensor:
    """Eq. (6): P / sqrt(colsum), rows renormalised. A column of mass zero gives zeros. (B, C)."""
    P = _wide(P)
    colsum = P.sum(0) if colsum is None else colsum
    held = colsum > 0
    weighted = torch.where(held, P / torch.where(held, colsum, 1).sqrt(), 0)
    total = weighted.sum(1, keepdim=True)
    return weighted / torch.where(total > 0, total, 1)


def rebalance_exponent(
    pi: Tensor,  # (C,)
) -> Tensor:
    """Eq. (6'): the power a of the column sums that stands for Eq. (6)'s 1/2: 1/2 while exp(H(pi)) is at least CAP_GATE
    of C, 0 where it is at most REBALANCE_GATE, in between on the line: a target that lacks classes is not pressed to
    have them. As it falls Q is sharpened, and y_M gives way to it: see `objective`. A scalar."""
    pi = _wide(pi)
    spread = (-torch.xlogy(pi, pi).sum()).exp() / pi.numel()
    return 0.5 * ((spread - REBALANCE_GATE) / (CAP_GATE - REBALANCE_GATE)).clamp(0, 1)


def mixed_labels(
    Q: Tensor,  # (B, C)
    y_M: Tensor,  # (B,) int64
    gamma_Q: float,
) -> Tensor:
    """Eq. (10): (1 - gamma_Q) * Q + gamma_Q * onehot(y_M). (B, C)."""
    Q = _wide(Q)
    return (1 - gamma_Q) * Q + gamma_Q * _one_hot(y_M, Q.shape[1], Q.dtype)


def soft_cross_entropy(
    features: Tensor,  # (B, D)
    prototypes: Tensor,  # (C, D)
    log_prior: Tensor,  # (C,)
    tau: float,
    labels: Tensor,  # (B, C), constants
) -> Tensor:
    """Eqs. (7)-(9): the mean over the batch of -sum_c labels[b,c] log P[b,c], P as in Eq. (2). A scalar."""
    log_P = torch.log_softmax(log_prior + cosine(features, prototypes) / tau, dim=-1)
    return _cross_entropy(labels.detach(), log_P)


# --- the phases of one step --------------------------------------------------------------------


class Expectation(NamedTuple):
    """What the E-step hands on. Everything from `colsum_g` to `sums` is a view of `statistics`,
    the sums over this rank's rows that many ranks add up in one all-reduce before `objective`."""

    features: Tensor  # (B, D), as given
    mu_g: Tensor  # (C, D), as given
    mu_f: Tensor  # (C, D), as given
    tau: float
    S_g: Tensor  # (B, C) logits: log prior + cos / tau under mu_g
    S_f: Tensor  # (B, C) the same under mu_f
    y_M: Tensor  # (B,) int64
    statistics: Tensor  # flat
    colsum_g: Tensor  # (C,) of P_g
    colsum_f: Tensor  # (C,) of P_f
    prior_sum: Tensor  # (C,) rows * P_bar of Eq. (3)
    rows: Tensor  # () how many rows
    bad_rows: Tensor  # () how many of them hold a non-finite feature
    counts: Tensor | None  # (C,) of the classes in `labels`; None where none were given
    sums: Tensor | None  # (C, D) of their features
    exponent: Tensor | None  # () of the column sums in Q, by (6'); None: Eq. (6)'s 1/2


class Objective(NamedTuple):
    """Eq. (11)'s target term and what is logged of it: scalars, means over this rank's rows."""

    loss: Tensor  # loss_g + loss_f
    loss_g: Tensor
    loss_f: Tensor
    structure_g: Tensor  # Eq. (5), no gradient
    structure_f: Tensor


def expectation(
    features: Tensor,  # (B, D)
    mu: Tensor,  # (C, D)
    mu_g: Tensor,  # (C, D)
    mu_f: Tensor,  # (C, D)
    pi: Tensor,  # (C,)
    tau: float,
    *,
    prior_estimate: str = "likelihood",  # "likelihood", "posterior" or "nearest"
    prior_shrinkage: bool = False,  # (2*)
    prior_cap: bool = False,  # (2')
    prior_gate: bool = False,  # (2"), with prior_cap
    rebalance_gate: bool = False,  # (6')
    use_y_M: bool = False,  # class sums by y_M
    labels: Tensor | None = None,  # (B,) int64: class sums by these (4*); neither: no class sums
) -> Expectation:
    """E: the posteriors under mu, mu_g and mu_f from one stacked product, y_M, and the sums over the batch."""
    C = mu.shape[0]
    log_prior = (shrink_prior(pi) if prior_shrinkage else cap_prior(pi, prior_gate) if prior_cap else pi).log()
    cos, cos_g, cos_f = cosine(features, torch.cat([mu, mu_g, mu_f])).chunk(3, dim=1)
    S_g, S_f = log_prior + cos_g / tau, log_prior + cos_f / tau
    with torch.no_grad():
        y_M = first_argmax(log_prior + cos / tau)
        P_g, P_f = torch.softmax(S_g, 1), torch.softmax(S_f, 1)
        if prior_estimate == "likelihood":
            estimate = torch.softmax(cos_g / tau, 1)
        elif prior_estimate == "posterior":
            estimate = P_g
        elif prior_estimate == "nearest":
            estimate = _one_hot(first_argmax(cos), C, P_g.dtype)
        else:
            raise ValueError(f"prior_estimate must be 'likelihood', 'posterior' or 'nearest', got {prior_estimate!r}")
        rows = P_g.new_full((1,), len(features))
        bad_rows = (~torch.isfinite(features).all(1)).sum().to(P_g.dtype)[None]
        parts = [P_g.sum(0), P_f.sum(0), estimate.sum(0), rows, bad_rows]
        by = labels if labels is not None else y_M if use_y_M else None
        if by is not None:
            sums, counts = class_sums(features, by, C)
            parts += [counts, sums.flatten()]
        statistics = torch.cat(parts)
    colsum_g, colsum_f, prior_sum = statistics[: 3 * C].view(3, C)
    tail = statistics[3 * C + 2 :]
    return Expectation(
        features=features,
        mu_g=mu_g,
        mu_f=mu_f,
        tau=tau,
        S_g=S_g,
        S_f=S_f,
        y_M=y_M,
        statistics=statistics,
        colsum_g=colsum_g,
        colsum_f=colsum_f,
        prior_sum=prior_sum,
        rows=statistics[3 * C],
        bad_rows=statistics[3 * C + 1],
        counts=None if by is None else tail[:C],
        sums=None if by is None else tail[C:].view(C, -1),
        exponent=rebalance_exponent(pi) if rebalance_gate else None,
    )


def objective(
    e: Expectation,
    gamma_g: float,  # weight of onehot(y_M) in the labels of g: gamma_Q, or 1 without L_KL, 0 without the mix
    gamma_f: float,  # the same for f
) -> Objective:
    """C and the loss: Q by Eq. (6) or (6') from the given column sums, labels by Eq. (10), soft cross-entropy
    (7)-(9). By Eq. (6'), with l = 1 - 2 a, Q is P^(1 + SHARPENING l) / colsum^a with its rows renormalised, and the
    weight of y_M gamma - l gamma (1 - gamma); with a of 1/2 both are as printed."""
    loss_g, structure_g = _head_loss(e.S_g, e.colsum_g, e.exponent, e.y_M, gamma_g)
    loss_f, structure_f = _head_loss(e.S_f, e.colsum_f, e.exponent, e.y_M, gamma_f)
    return Objective(loss_g + loss_f, loss_g, loss_f, structure_g, structure_f)


def _head_loss(S: Tensor, colsum: Tensor, exponent: Tensor | None, y_M: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Loss and structure of one head. Q is taken from the logits, so that a P that underflows does no harm."""
    log_P = torch.log_softmax(S, 1)
    with torch.no_grad():
        held = colsum > 0
        power = 0.5 if exponent is None else exponent
        weight = torch.where(held, -power * torch.where(held, colsum, 1).log(), -torch.inf)
        if exponent is None:
            Q = torch.softmax(S + weight, 1)
            labels = mixed_labels(Q, y_M, gamma)
        else:
            narrow = 1 - 2 * exponent
            Q = torch.softmax(S * (1 + SHARPENING * narrow) + weight, 1)
            of_y_M = gamma - narrow * (gamma * (1 - gamma))
            labels = (1 - of_y_M) * Q + of_y_M * _one_hot(y_M, Q.shape[1], Q.dtype)
        structure = structure_loss(Q, log_P.exp())
    return _cross_entropy(labels, log_P), structure


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
    """The memory: Eqs. (3) and (4). A batch with a non-finite feature or posterior leaves it untouched, and `health`
    notes it."""
    if e.sums is None or e.counts is None:
        raise ValueError("update_memory_() needs class sums: call expectation() with labels, or with use_y_M=True")
    bad = (e.bad_rows > 0) | ~torch.isfinite(e.prior_sum).all()  # NaN in the features, or in the prototypes
    keep = bad if skip is None else bad | (skip != 0)
    mu.copy_(torch.where(keep, mu, update_prototypes(mu, e.sums, e.counts, gamma_mu)))
    pi.copy_(torch.where(keep, pi, update_prior(pi, e.prior_sum / e.rows, gamma_pi, floor)))
    updates, refused = health.unbind()
    health.copy_(torch.stack([updates + 1, torch.where(bad & (refused < 0), updates, refused)]))


__all__ = [
    "Expectation",
    "Objective",
    "agreeing_votes",
    "cap_prior",
    "class_sums",
    "expectation",
    "mixed_labels",
    "nearest_histogram",
    "objective",
    "posterior",
    "rebalance",
    "rebalance_exponent",
    "shrink_prior",
    "soft_cross_entropy",
    "structure_loss",
    "update_memory_",
    "update_prior",
    "update_prototypes",
]
