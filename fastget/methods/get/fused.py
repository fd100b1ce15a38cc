"""GeT's step on a CPU in few, large operators, under the names and signatures of `fastget.reference`.

The reference keeps the equations apart and leaves the gradient to autograd: some 200 operators, most of them small.
Here features and prototypes are stacked and made unit at once, and the gradient is written out. With P of `posterior`,
y of `mixed_labels`, f' and m' the unit vectors, and slope = (P - y) / (B tau):

    loss = -mean_b sum_c y log P
    d_f  = (slope @ m' - pull f') / |f|        pull_b = sum_c slope cos
    d_m  = (slope^T @ f' - pull m') / |m|      pull_c = sum_b slope cos

Class sums are rows added up, no product with one-hot labels. A CPU waits for nothing, so values may decide what is run:
a batch out of the ordinary (a norm that is no number, or under 1e-12 and not 0; a prior of 0) is the reference's.

Shapes: B images in a target batch, C classes, D feature width; 3 is mu, mu_g, mu_f, and 2 the heads g and f.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastget import reference
from fastget.reference import (
    CAP_FLOOR,
    CAP_GATE,
    EPS,
    GATED_REACH,
    PRIOR_FLOOR,
    SHARPENING,
    Objective,
    agreeing_votes,
    cap_prior,
    class_sums,
    mixed_labels,
    nearest_histogram,
    posterior,
    rebalance,
    rebalance_exponent,
    shrink_prior,
    soft_cross_entropy,
    structure_loss,
    update_prior,
    update_prototypes,
)


class Kept(NamedTuple):
    """What the objective and its gradient need of the E-step."""

    units: Tensor  # (B + 3 C, D): features, mu, mu_g, mu_f, over their norms
    inverse: Tensor  # (B + 3 C,) 1 / their norm, 0 for a zero vector
    cos: Tensor  # (B, 2, C)
    log_P: Tensor  # (B, 2, C)
    P: Tensor  # (B, 2, C)


class Expectation(NamedTuple):
    """As the reference's. The logits are constants here: the gradient is that of `objective`."""

    features: Tensor  # (B, D), as given
    mu_g: Tensor  # (C, D), as given
    mu_f: Tensor  # (C, D), as given
    tau: float
    S_g: Tensor  # (B, C) logits: log prior + cos / tau under mu_g
    S_f: Tensor  # (B, C) the same under mu_f
    y_M: Tensor  # (B,) int64
    statistics: Tensor  # flat; the rest, but for `kept`, are views of it
    colsum_g: Tensor  # (C,) of P_g
    colsum_f: Tensor  # (C,) of P_f
    prior_sum: Tensor  # (C,) rows * P_bar of Eq. (3)
    rows: Tensor  # () how many rows
    bad_rows: Tensor  # () how many of them hold a non-finite feature
    counts: Tensor | None  # (C,) of the classes in `labels`; None where none were given
    sums: Tensor | None  # (C, D) of their features
    exponent: Tensor | None  # () of the column sums, (6'); None: Eq. (6)'s 1/2
    kept: Kept


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
) -> Expectation | reference.Expectation:
    """E: the posteriors under mu, mu_g and mu_f, y_M, and the sums over the batch."""
    with torch.no_grad():
        found = None
        if not torch.compiler.is_compiling() and prior_estimate in ("likelihood", "posterior", "nearest"):
            by: Tensor | bool | None = use_y_M if labels is None else labels
            gated = prior_cap and prior_gate and not prior_shrinkage
            spread = _spread(pi) if gated or rebalance_gate else math.nan
            even = spread >= CAP_GATE  # then neither (2") nor (6') does anything
            if gated and spread >= 0:
                log_prior = pi.new_full(pi.shape, -math.log(len(pi))) if even else _capped(pi, spread).log_()
            else:
                log_prior = (shrink_prior(pi) if prior_shrinkage else cap_prior(pi, gated) if prior_cap else pi).log()
            exponent = rebalance_exponent(pi) if rebalance_gate and not even else None
            found = _ordinary(features, mu, mu_g, mu_f, log_prior, gated and even, tau, prior_estimate, by, exponent)
    if found is not None:
        return found
    return reference.expectation(
        features, mu, mu_g, mu_f, pi, tau, prior_estimate=prior_estimate, prior_shrinkage=prior_shrinkage,
        prior_cap=prior_cap, prior_gate=prior_gate, rebalance_gate=rebalance_gate, use_y_M=use_y_M, labels=labels,
    )  # fmt: skip


def _spread(pi: Tensor) -> float:
    """exp(H(pi)) / C. NaN where pi has a 0 in it, which is left to the reference's formulas."""
    return math.exp(-float(torch.dot(pi, pi.log()))) / len(pi)


def _capped(pi: Tensor, spread: float) -> Tensor:
    """The reference's `cap_prior` with its gate, of a spread below it."""
    beta = min(1.0, 4 / CAP_GATE * (1 - spread / CAP_GATE))
    capped = (pi * (GATED_REACH / float(torch.dot(pi, pi)))).clamp_max_(1).pow_(beta)
    floored = capped.div_(capped.sum()).clamp_min_(CAP_FLOOR / len(pi))
    return floored.div_(floored.sum())


def _ordinary(
    features: Tensor,
    mu: Tensor,
    mu_g: Tensor,
    mu_f: Tensor,
    log_prior: Tensor,  # (C,)
    uniform: bool,  # whether it is that of all classes alike
    tau: float,
    estimate: str,
    by: Tensor | bool | None,  # class sums by these, by y_M, or none
    exponent: Tensor | None,
) -> Expectation | None:
    """None where a norm or the prior is out of the ordinary."""
    (B, D), C, dtype = features.shape, len(mu), log_prior.dtype
    x = torch.cat([t if t.dtype == dtype else t.to(dtype) for t in (features, mu, mu_g, mu_f)])
    inverse = torch.linalg.vector_norm(x, dim=1)
    if not _invert_(inverse) or not (uniform or float(log_prior.min()) > -torch.inf):
        return None
    x.mul_(inverse.unsqueeze(1))
    cos = torch.mm(x[:B], x[B:].t()).view(B, 3, C)
    logits = torch.add(log_prior, cos, alpha=1 / tau)
    S, S_g, S_f = logits.unbind(1)
    nearest = cos[:, 0].argmax(1) if estimate == "nearest" else None  # the lowest index on a tie
    y_M = nearest if nearest is not None and uniform else S.argmax(1)
    log_P = torch.log_softmax(logits[:, 1:], 2)
    P = log_P.exp()

    by = y_M if by is True else by
    sizes = [C, C, C, 1, 1] + ([C, C * D] if isinstance(by, Tensor) else [])
    statistics = x.new_zeros(sum(sizes))  # no bad row: its norm would not be finite
    colsum_g, colsum_f, prior_sum, rows, bad_rows, *of_classes = statistics.split_with_sizes(sizes)
    torch.sum(P, 0, out=statistics[: 2 * C].view(2, C))
    ones = x.new_ones(()).expand(B)
    if nearest is not None:
        prior_sum.scatter_add_(0, nearest, ones)
    elif estimate == "likelihood":
        torch.sum(torch.softmax(cos[:, 1] / tau, 1), 0, out=prior_sum)
    else:
        prior_sum.copy_(colsum_g)
    rows.fill_(B)
    counts = sums = None
    if isinstance(by, Tensor):
        counts, sums = of_classes[0].scatter_add_(0, by, ones), of_classes[1].view(C, D)
        sums.scatter_add_(0, by.unsqueeze(1).expand(B, D), features if features.dtype == dtype else features.to(dtype))
    return Expectation(
        features, mu_g, mu_f, tau, S_g, S_f, y_M, statistics, colsum_g, colsum_f, prior_sum,
        rows.view(()), bad_rows.view(()), counts, sums, exponent, Kept(x, inverse, cos[:, 1:], log_P, P),
    )  # fmt: skip


def _invert_(norms: Tensor) -> bool:
    """1 / norm in its place, and 0 for 0; False where a norm is out of the ordinary."""
    low, high = torch.aminmax(norms)
    least = float(low)  # NaN where there is one, and then no comparison holds
    if not (float(high) < torch.inf and (least >= EPS or least == 0)):
        return False
    if least >= EPS:
        norms.reciprocal_()
        return True
    zero = norms == 0
    if bool(((norms < EPS) & ~zero).any()):
        return False
    norms.reciprocal_().masked_fill_(zero, 0)
    return True


def objective(
    e: Expectation | reference.Expectation,
    gamma_g: float,  # weight of onehot(y_M) in the labels of g: gamma_Q, or 1 without L_KL, 0 without the mix
    gamma_f: float,  # the same for f
) -> Objective:
    """C and the loss: Q by Eq. (6) or (6') from the given column sums, labels by Eq. (10), soft cross-entropy
    (7)-(9)."""
    if isinstance(e, reference.Expectation):
        return reference.objective(e, gamma_g, gamma_f)
    if not isinstance(e, Expectation):
        raise ValueError(
            "objective() needs what expectation() of the same backend makes; this Expectation is of another: "
            "use the same one for both"
        )
    return Objective(*_Loss.apply(e.features, e.mu_g, e.mu_f, e, float(gamma_g), float(gamma_f)))


class _Loss(torch.autograd.Function):
    """(features, mu_g, mu_f, e, gamma_g, gamma_f) -> the five numbers of an Objective."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, mu_g: Tensor, mu_f: Tensor, e: Expectation, gamma_g: float, gamma_f: float
    ) -> tuple[Tensor, ...]:
        kept, C = e.kept, e.kept.P.shape[2]
        colsum = e.statistics[: 2 * C].view(2, C)
        weight = colsum.rsqrt() if e.exponent is None else colsum.pow(-e.exponent)
        narrow = 0.0 if e.exponent is None else 1 - 2 * float(e.exponent)
        weights = [gamma - narrow * gamma * (1 - gamma) for gamma in (gamma_g, gamma_f)]
        y, structure, losses = _labels(kept, weight, SHARPENING * narrow, e.y_M, *weights)
        if not all(map(math.isfinite, losses)):  # a column of mass zero, whose weight is 0, is one cause
            weight.masked_fill_(colsum <= 0, 0)
            y, structure, losses = _labels(kept, weight, SHARPENING * narrow, e.y_M, *weights)
        loss_g, loss_f = (structure.new_tensor(loss) for loss in losses)
        if any(ctx.needs_input_grad):
            ctx.kinds, ctx.tau = (features.dtype, mu_g.dtype, mu_f.dtype), e.tau
            ctx.save_for_backward(*kept[:3], torch.sub(kept.P, y, out=y))
        structures = structure.unbind()
        ctx.mark_non_differentiable(*structures)
        ctx.set_materialize_grads(False)
        return (loss_g + loss_f, loss_g, loss_f, *structures)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        units, inverse, cos, change = ctx.saved_tensors
        B, _, C = change.shape
        f, _, m = units.split_with_sizes((B, C, 2 * C))
        both, g, h = (0.0 if grad is None else float(grad) for grad in grads[:3])
        scale = (both + g) / (B * ctx.tau)
        if g != h:
            change = change * change.new_tensor([both + g, both + h]).unsqueeze(1)
            scale = 1 / (B * ctx.tau)
        of_f, _, of_m = (inverse * scale).split_with_sizes((B, C, 2 * C))
        pulls = (cos * change).view(B, 2 * C)
        change = change.view(B, 2 * C)
        d: list[Tensor | None] = [None] * 6
        if ctx.needs_input_grad[0]:
            d_f = torch.mm(change * of_f.unsqueeze(1), m)
            d[0] = d_f.addcmul_(f, pulls.sum(1).mul_(of_f).unsqueeze(1), value=-1).to(ctx.kinds[0])
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            d_m = torch.mm((change * of_m).t(), f)
            d_m.addcmul_(m, pulls.sum(0).mul_(of_m).unsqueeze(1), value=-1)
            d[1:3] = d_m[:C].to(ctx.kinds[1]), d_m[C:].to(ctx.kinds[2])
        return tuple(d)


def _labels(
    kept: Kept, weight: Tensor, sharpness: float, y_M: Tensor, gamma_g: float, gamma_f: float
) -> tuple[Tensor, Tensor, list[float]]:
    """Labels (B, 2, C) by Eqs. (6) and (10), or (6'), what is said of their structure (2,), the losses of g and f."""
    B = len(y_M)
    y = (kept.P.pow(1 + sharpness) if sharpness else kept.P) * weight  # Q, and then the labels
    total = y.sum(2, keepdim=True)
    y.div_(total)
    Q_bar = y.mean(0)
    # log Q - log P = log weight - log total, and sharpness log P
    structure = torch.xlogy(Q_bar, Q_bar * weight).sum(1).sub_(total.log_().sum((0, 2)), alpha=1 / B)
    if sharpness:
        structure.add_((y * kept.log_P).sum((0, 2)), alpha=sharpness / B)
    _mix_(y, y_M, gamma_g, gamma_f)
    return y, structure, [loss / -B for loss in (y * kept.log_P).sum((0, 2)).tolist()]


def _mix_(Q: Tensor, y_M: Tensor, gamma_g: float, gamma_f: float) -> None:
    """Eq. (10) in the place of Q (B, 2, C)."""
    heads = [(Q, gamma_g)] if gamma_g == gamma_f else [(Q[:, :1], gamma_g), (Q[:, 1:], gamma_f)]
    for Q_h, gamma in heads:
        shape = (len(Q), Q_h.shape[1], 1)
        given = Q.new_full((1, 1, 1), gamma).expand(shape)
        Q_h.mul_(1 - gamma).scatter_add_(2, y_M.view(-1, 1, 1).expand(shape), given)


def _next_prior(pi: Tensor, e: Expectation, gamma_pi: float) -> Tensor:
    """Eq. (3), before it is made to sum to 1."""
    return torch.mul(pi, 1 - gamma_pi).add_(e.prior_sum, alpha=gamma_pi / float(e.rows))


@torch.no_grad()
def update_memory_(
    mu: Tensor,  # (C, D), changed in place
    pi: Tensor,  # (C,), changed in place
    health: Tensor,  # (2,) int64, in place: updates so far, and the first that was refused (-1: none)
    e: Expectation | reference.Expectation,
    gamma_mu: float,
    gamma_pi: float,
    *,
    floor: float = PRIOR_FLOOR,
    skip: Tensor | None = None,  # (), not 0: leave the memory as it is (an overflow of the loss scaler)
) -> None:
    """The memory: Eqs. (3) and (4). A batch with a non-finite feature or posterior leaves it untouched, and `health`
    notes it."""
    if (
        isinstance(e, reference.Expectation)
        or e.sums is None
        or e.counts is None
        or torch.compiler.is_compiling()
        or float(e.bad_rows) != 0  # another rank's
        or not math.isfinite(total := float((prior := _next_prior(pi, e, gamma_pi)).sum()))
    ):
        given: Any = e  # of the same fields as the reference's own
        reference.update_memory_(mu, pi, health, given, gamma_mu, gamma_pi, floor=floor, skip=skip)
        return
    if skip is None or not bool(skip):
        step = e.counts.clamp_max(1).mul_(gamma_mu)  # 0 for a class with none, which is left as it was
        mu.lerp_(e.sums / e.counts.clamp_min(1).unsqueeze(1), step.unsqueeze(1))
        torch.div(prior, total, out=pi).clamp_min_(floor)
    health[0].add_(1)


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
