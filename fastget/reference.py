"""The paper's GeT in plain PyTorch: one function per equation, then the phases of a step, made of those functions.

This is the path that every kernel is verified against, and the one that runs on a CPU.
Equation numbers are those of fastget/METHOD.md. What fastget adds to the paper is in methods/get/prior.py.

Shapes, unless an argument says otherwise: B images in a target batch, C classes, D feature width;
features (B, D); mu, mu_g, mu_f, prototypes, sums (C, D); pi, log_pi, log_prior, P_bar, colsum, counts (C,);
P, Q, S, cos (B, C); y_M and labels (B,) int64. Half-precision input is computed in float32; float64 stays float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

EPS = 1e-12  # the least norm that a cosine divides by
PRIOR_FLOOR = 1e-8  # the least entry of pi, so that its log is finite
LOG_ZERO = -1e30  # for log 0: its exponential is 0, and a row of nothing else is not NaN
Number = Tensor | float


# --- helpers of the equations ------------------------------------------------------------------


def wide(x: Tensor) -> Tensor:
    """Half precision to float32; float32 and float64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit(x: Tensor) -> Tensor:
    """Rows of `x` divided by max(norm, 1e-12). A row shorter than that gets no gradient: its slope would be 1e12."""
    x = wide(x)
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


def one_hot(y: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """(B,) int64 -> (B, C), without the host sync of torch's own one_hot."""
    return (y[:, None] == torch.arange(num_classes, device=y.device)).to(dtype)


# --- the equations -----------------------------------------------------------------------------


def logits(cos: Tensor, log_prior: Tensor, tau: float) -> Tensor:
    """Eq. (2) before its softmax: log_prior[c] + cos[b,c] / tau."""
    return log_prior + cos / tau


def posterior(features: Tensor, prototypes: Tensor, log_prior: Tensor, tau: float) -> Tensor:
    """Eq. (2): softmax over c of log_prior[c] + cos(features[b], prototypes[c]) / tau."""
    return torch.softmax(logits(cosine(features, prototypes), log_prior, tau), dim=-1)


def likelihood(cos: Tensor, cos_g: Tensor, tau: float) -> Tensor:
    """Each image's share in P_bar: softmax over c of cos(f, mu_g) / tau. Differs from Eq. (3), which prints the batch
    mean of cos / tau: that is no distribution."""
    return torch.softmax(cos_g / tau, 1)


def update_prior(pi: Tensor, P_bar: Tensor, gamma_pi: float, floor: float = PRIOR_FLOOR) -> Tensor:
    """Eq. (3): (1 - gamma_pi) * pi + gamma_pi * P_bar, renormalised, then floored; gamma_pi = 0 leaves pi as it is."""
    if gamma_pi == 0:
        return pi
    mixed = (1 - gamma_pi) * wide(pi) + gamma_pi * wide(P_bar)
    return (mixed / mixed.sum()).clamp_min(floor)


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The sums behind Eq. (4): each class's features summed, and its count."""
    features = wide(features)
    hot = one_hot(labels, num_classes, features.dtype)
    return hot.T @ features, hot.sum(0)


def update_prototypes(mu: Tensor, sums: Tensor, counts: Tensor, gamma_mu: float) -> Tensor:
    """Eq. (4): (1 - gamma_mu) * mu[c] + gamma_mu * sums[c] / counts[c]; a class with none is left as it was."""
    counts = counts[:, None].to(sums.dtype)
    moved = (1 - gamma_mu) * mu + gamma_mu * (sums / counts.clamp_min(1))
    return torch.where(counts > 0, moved, mu)


def scatter_update(
    mu: Tensor, pi: Tensor, features: Tensor, labels: Tensor, P_bar: Tensor,
    gamma_mu: float, gamma_pi: float, floor: float = PRIOR_FLOOR,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Eqs. (4) and (3) in one call: mu and pi after one batch."""
    sums, counts = class_sums(features, labels, mu.shape[0])
    return update_prototypes(mu, sums, counts, gamma_mu), update_prior(pi, P_bar, gamma_pi, floor)


def structure_loss(Q: Tensor, P: Tensor) -> Tensor:
    """Eq. (5): KL(Q || P) / B + sum_c Qbar_c log Qbar_c, Qbar the batch mean of Q."""
    Q, P = wide(Q), wide(P)
    positive = Q > 0  # where Q is 0 the term is 0, whatever P is, and so is its gradient
    ratio = torch.where(positive, Q, 1).log() - torch.where(positive, P, 1).log()
    Q_bar = Q.mean(0)
    return (Q * ratio).sum() / len(Q) + torch.xlogy(Q_bar, Q_bar).sum()


def rebalance_logits(S: Tensor, colsum: Tensor, exponent: Number = 0.5, power: Number = 1.0) -> Tensor:
    """Eq. (6) in logs, where a P that underflows does no harm: softmax over c of power * S - exponent * log colsum.
    A column of mass zero gives zeros."""
    mass = colsum != 0  # a NaN stays one
    weight = torch.where(mass, -exponent * torch.where(mass, colsum, 1).log(), LOG_ZERO)
    return torch.softmax(power * S + weight, 1)


def rebalance(P: Tensor, colsum: Tensor | None = None, exponent: Number = 0.5, power: Number = 1.0) -> Tensor:
    """Eq. (6): P^power / colsum^exponent, rows renormalised; an entry of 0 stays 0 and has no gradient.
    `colsum` is over the global batch; None: over these rows."""
    P = wide(P)
    colsum = P.sum(0) if colsum is None else wide(colsum)
    log_P = torch.where(P > 0, torch.where(P > 0, P, 1).log(), LOG_ZERO)
    return torch.where((P > 0) & (colsum > 0), rebalance_logits(log_P, colsum, exponent, power), 0)


def soft_cross_entropy(log_P: Tensor, labels: Tensor) -> Tensor:
    """Eqs. (7)-(9): the mean over the batch of -sum_c labels[b,c] log P[b,c], labels (B, C) constants. A label of 0
    adds nothing, also where the prior is 0."""
    return -torch.where(labels == 0, 0, labels * log_P).sum(1).mean()


def mixed_labels(Q: Tensor, y_M: Tensor, gamma_Q: float) -> Tensor:
    """Eq. (10): (1 - gamma_Q) * Q + gamma_Q * onehot(y_M)."""
    Q = wide(Q)
    return (1 - gamma_Q) * Q + gamma_Q * one_hot(y_M, Q.shape[1], Q.dtype)


# --- what a step takes from the prior -------------------------------------------------------------


class Prior(NamedTuple):
    """All that pi does in a step."""

    log_pi: Tensor  # (C,) in every posterior, Eq. (2)
    exponent: Tensor  # () of the column sums in Eq. (6); the paper's is 1/2
    power: Tensor  # () of P in Eq. (6); the paper's is 1


Rule = Callable[[Tensor, Tensor], Prior]  # (pi (C,), trust ()) -> Prior


def paper_prior(pi: Tensor, trust: Tensor | None = None) -> Prior:
    """What the paper takes: log pi as it is, and Eq. (6)'s own powers; `trust` is for other rules."""
    return Prior(wide(pi).log(), wide(pi).new_full((), 0.5), wide(pi).new_ones(()))


# --- the phases of one step --------------------------------------------------------------------


class Expectation(NamedTuple):
    """What the E-step hands on; from `colsum_g` on, views of `statistics`, which ranks add up in one all-reduce."""

    features: Tensor  # (B, D), as given
    mu_g: Tensor  # (C, D), as given
    mu_f: Tensor  # (C, D), as given
    tau: float
    S_g: Tensor  # (B, C) logits under mu_g
    S_f: Tensor  # (B, C) the same under mu_f
    y_M: Tensor  # (B,) int64
    statistics: Tensor  # flat
    colsum_g: Tensor  # (C,) of P_g
    colsum_f: Tensor  # (C,) of P_f
    prior_sum: Tensor  # (C,) rows * P_bar of Eq. (3)
    rows: Tensor  # () how many rows
    bad_rows: Tensor  # () how many of them hold a non-finite feature
    counts: Tensor  # (C,) of the labels
    sums: Tensor  # (C, D) of their features; the last view
    scales: Any = None  # what the kernels' backward needs beside; None: autograd does it


class Objective(NamedTuple):
    """Eq. (11)'s target term and what is logged of it: scalars, means over this rank's rows."""

    loss: Tensor  # loss_g + loss_f
    loss_g: Tensor
    loss_f: Tensor
    structure_g: Tensor  # Eq. (5), no gradient
    structure_f: Tensor


def views(statistics: Tensor, C: int) -> Sequence[Tensor]:
    """The parts of `statistics`, in the order of Expectation's fields."""
    *vectors, two, counts, sums = torch.split(statistics, [C, C, C, 2, C, statistics.numel() - 4 * C - 2])
    return (*vectors, *two, counts, sums.view(C, -1))


def expectation(
    features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, log_pi: Tensor, tau: float, *,
    estimate: Callable[[Tensor, Tensor, float], Tensor] = likelihood,  # each image's share in P_bar, Eq. (3)
    labels: Tensor | None = None,  # class sums by these; None: by y_M, as Eq. (4) has it
) -> Expectation:  # fmt: skip
    """E: the posteriors under mu, mu_g and mu_f from one stacked product, y_M, and the sums over the batch."""
    C = mu.shape[0]
    cos, cos_g, cos_f = cosine(features, torch.cat([mu, mu_g, mu_f])).chunk(3, dim=1)
    S_g, S_f = logits(cos_g, log_pi, tau), logits(cos_f, log_pi, tau)
    with torch.no_grad():
        y_M = first_argmax(logits(cos, log_pi, tau))
        P_g, P_f = torch.softmax(S_g, 1), torch.softmax(S_f, 1)
        prior_sum = estimate(cos, cos_g, tau).sum(0)
        rows, bad_rows = P_g.new_full((1,), len(features)), (~torch.isfinite(features).all(1)).sum()[None].to(P_g)
        sums, counts = class_sums(features, y_M if labels is None else labels, C)
        statistics = torch.cat([P_g.sum(0), P_f.sum(0), prior_sum, rows, bad_rows, counts, sums.flatten()])
    return Expectation(features, mu_g, mu_f, tau, S_g, S_f, y_M, statistics, *views(statistics, C))


def objective(e: Expectation, prior: Prior, gamma_g: float, gamma_f: float) -> Objective:
    """C and the loss of both heads. gamma_g, gamma_f: gamma_Q of Eq. (10), or 1 without L_KL, 0 without the mix."""
    if e.scales is not None:
        raise ValueError("this Expectation is the kernels', whose logits carry no gradient: use one backend for both")
    loss_g, structure_g = _head_loss(e.S_g, e.colsum_g, e.y_M, prior, gamma_g)
    loss_f, structure_f = _head_loss(e.S_f, e.colsum_f, e.y_M, prior, gamma_f)
    return Objective(loss_g + loss_f, loss_g, loss_f, structure_g, structure_f)


def _head_loss(S: Tensor, colsum: Tensor, y_M: Tensor, prior: Prior, gamma: float) -> tuple[Tensor, Tensor]:
    """Loss and structure of one head."""
    log_P = torch.log_softmax(S, 1)
    with torch.no_grad():
        Q = rebalance_logits(S, colsum, prior.exponent, prior.power)
        labels = mixed_labels(Q, y_M, gamma)
        structure = structure_loss(Q, log_P.exp())
    return soft_cross_entropy(log_P, labels), structure


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
    """The memory: Eqs. (3) and (4). A batch with a non-finite feature or posterior leaves it, and `health` notes it."""
    bad = (e.bad_rows > 0) | ~torch.isfinite(e.prior_sum).all()  # NaN in features or prototypes
    keep = bad if skip is None else bad | (skip != 0)
    mu.copy_(torch.where(keep, mu, update_prototypes(mu, e.sums, e.counts, gamma_mu)))
    pi.copy_(torch.where(keep, pi, update_prior(pi, e.prior_sum / e.rows, gamma_pi, floor)))
    updates, refused = health.unbind()
    health.copy_(torch.stack([updates + 1, torch.where(bad & (refused < 0), updates, refused)]))
    if prior is not None:
        renew_prior_(prior, pi, rule, trust)


@torch.no_grad()
def renew_prior_(prior: Prior, pi: Tensor, rule: Rule = paper_prior, trust: Tensor | None = None) -> None:
    """prior <- rule(pi, trust), in place."""
    for old, new in zip(prior, rule(pi, pi.new_ones(()) if trust is None else trust), strict=True):
        old.copy_(new)
