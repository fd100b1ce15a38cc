"""E: the three posteriors' logits, y_M, and the sums over the batch, in two launches."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from fastget.kernels.checks import check_labels, check_like, check_pair, check_tau
from fastget.kernels.copied import launch_copied_logits, takes_copies
from fastget.kernels.logits import Scales, launch_logits, scales_of
from fastget.kernels.prior import AS_IT_IS, FADING, SHRUNK, cap_form
from fastget.kernels.statistics import launch_statistics, statistics_size, statistics_views
from fastget.kernels.wrap import Operator

ESTIMATES = ("likelihood", "posterior", "nearest")


class Expectation(NamedTuple):
    """What the E-step hands on. Everything from `colsum_g` to `sums` is a view of `statistics`,
    the sums over this rank's rows that many ranks add up in one all-reduce before `objective`."""

    features: Tensor  # (B, D), as given
    mu_g: Tensor  # (C, D), as given
    mu_f: Tensor  # (C, D), as given
    tau: float
    S_g: Tensor  # (B, C) logits: log prior + cos / tau under mu_g; constants: objective() makes the gradient
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
    exponent: Tensor  # () of the column sums in Q: Eq. (6)'s 1/2, or by (6')
    scales: Scales  # log prior and norms, for the backward pass; the reference has none


def run_expectation(
    features: Tensor,
    mu: Tensor,
    mu_g: Tensor,
    mu_f: Tensor,
    pi: Tensor,
    tau: float,
    estimate: str,
    form: int,
    use_y_M: bool,
    labels: Optional[Tensor],  # noqa: UP045  (the form that every torch's schema inference reads)
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    if takes_copies(features, mu, mu_g, mu_f):
        logits = launch_copied_logits(features, pi, tau, mu, mu_g, mu_f, estimate, form)
    else:
        logits = launch_logits(features, pi, tau, mu=mu, mu_g=mu_g, mu_f=mu_f, estimate=estimate, form=form)
    y_M, statistics = launch_statistics(features, logits, estimate, use_y_M, labels)
    log_prior, norm, norm_g, norm_f, copies = logits.scales
    assert logits.S_g is not None
    assert logits.S_f is not None
    assert norm_g is not None
    assert norm_f is not None
    assert logits.exponent is not None
    if copies is None:
        copies = torch.empty(0, dtype=torch.bfloat16, device=features.device)
    return logits.S_g, logits.S_f, y_M, statistics, logits.exponent, log_prior, norm, norm_g, norm_f, copies


def _fake(
    features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, pi: Tensor, tau: float, estimate: str, form: int,
    use_y_M: bool, labels: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    (B, D), C = features.shape, mu.shape[0]
    size = statistics_size(C, D, use_y_M or labels is not None)
    S_g, S_f, *rest = (
        features.new_empty(shape, dtype=torch.float32)
        for shape in ((B, C), (B, C), (size,), (), (C,), (B,), (C,), (C,))
    )
    shape = (3, C, D) if takes_copies(features, mu, mu_g, mu_f) else (0,)
    copies = features.new_empty(shape, dtype=torch.bfloat16)
    return (S_g, S_f, features.new_empty((B,), dtype=torch.int64), *rest, copies)


def check_expectation(
    features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, pi: Tensor, tau: float, prior_estimate: str,
    labels: Tensor | None,
) -> None:  # fmt: skip
    """ValueError if the E-step cannot take these."""
    check_pair(features, mu, "mu")
    C, device = mu.shape[0], features.device
    check_like("mu_g", mu_g, tuple(mu.shape), device)
    check_like("mu_f", mu_f, tuple(mu.shape), device)
    check_like("pi", pi, (C,), device)
    check_tau(tau)
    if prior_estimate not in ESTIMATES:
        raise ValueError(f"prior_estimate must be 'likelihood', 'posterior' or 'nearest', got {prior_estimate!r}")
    if labels is not None:
        check_labels("labels", labels, features.shape[0], device)


def form_of(prior_shrinkage: bool, prior_cap: bool, prior_gate: bool, rebalance_gate: bool) -> int:
    """What stands for pi, and whether Eq. (6') for (6): by kernels.prior."""
    prior = SHRUNK.value if prior_shrinkage else cap_form(prior_gate) if prior_cap else AS_IT_IS.value
    return int(prior | (FADING.value if rebalance_gate else 0))


_expectation = Operator("expectation", run_expectation, _fake)


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
    """reference.expectation(features, mu, mu_g, mu_f, pi, tau, ...), in two launches.

    E: the posteriors under mu, mu_g and mu_f from one read of the features, y_M, and the sums over the batch.
    The logits are constants here: the gradient is that of `objective`.
    """
    check_expectation(features, mu, mu_g, mu_f, pi, tau, prior_estimate, labels)
    form = form_of(prior_shrinkage, prior_cap, prior_gate, rebalance_gate)
    S_g, S_f, y_M, statistics, exponent, *scales = _expectation(
        features.detach(), mu.detach(), mu_g.detach(), mu_f.detach(), pi.detach().contiguous(), tau,
        prior_estimate, form, use_y_M, labels,
    )  # fmt: skip
    views = statistics_views(statistics, mu.shape[0])
    return Expectation(features, mu_g, mu_f, tau, S_g, S_f, y_M, statistics, *views, exponent, scales_of(scales))
