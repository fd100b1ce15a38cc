"""E: the three posteriors' logits, y_M, and the sums over the batch, in two launches."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from fastget.kernels.checks import check_labels, check_like, check_pair, check_tau
from fastget.kernels.logits import ESTIMATES, launch_logits
from fastget.kernels.statistics import BY_LABELS, BY_NOTHING, BY_Y_M, launch_statistics
from fastget.kernels.tile import BROKEN, UNITS
from fastget.kernels.wrap import Operator


class Expectation(NamedTuple):
    """What the E-step hands on. Everything from `colsum_g` to `sums` is a view of `statistics`,
    the sums over this rank's rows that many ranks add up in one all-reduce before `objective`."""

    features: Tensor  # (B, D), as given
    mu_g: Tensor  # (C, D), as given
    mu_f: Tensor  # (C, D), as given
    tau: float
    cos_g: Tensor  # (B, C) int32 cosines with mu_g, in units of 2^-29; a constant: objective() makes the gradient
    cos_f: Tensor  # (B, C) the same with mu_f
    y_M: Tensor  # (B,) int64
    statistics: Tensor  # flat
    colsum_g: Tensor  # (C,) of P_g
    colsum_f: Tensor  # (C,) of P_f
    prior_sum: Tensor  # (C,) rows * P_bar of Eq. (3)
    rows: Tensor  # () how many rows
    bad_rows: Tensor  # () how many of them hold a non-finite feature
    counts: Tensor | None  # (C,) of the classes in `labels`; None where none were given
    sums: Tensor | None  # (C, D) of their features
    scales: Tensor  # (3C + B,) float64: log prior, norms of features, mu_g and mu_f

    @property
    def S_g(self) -> Tensor:
        """(B, C) the logits log prior + cos / tau under mu_g, in float64: to look at, no kernel reads them."""
        return self._logits(self.cos_g)

    @property
    def S_f(self) -> Tensor:
        """(B, C) the same under mu_f."""
        return self._logits(self.cos_f)

    def _logits(self, units: Tensor) -> Tensor:
        cos = (units.double() / UNITS.value).masked_fill(units == BROKEN.value, float("nan"))
        logits: Tensor = self.scales[: units.shape[1]] + cos / self.tau
        return logits


def _forward(
    features: Tensor,
    mu: Tensor,
    mu_g: Tensor,
    mu_f: Tensor,
    pi: Tensor,
    tau: float,
    estimate: int,
    shrink: bool,
    by: int,
    labels: Optional[Tensor],  # noqa: UP045  (the form that every torch's schema inference reads)
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    logits = launch_logits(features, pi, tau, mu=mu, mu_g=mu_g, mu_f=mu_f, estimate=estimate, shrink=shrink)
    y_M, statistics = launch_statistics(features, logits, tau, estimate, by, labels)
    assert logits.cos_g is not None
    assert logits.cos_f is not None
    return logits.cos_g, logits.cos_f, y_M, statistics, logits.scales


def _fake(
    features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, pi: Tensor, tau: float, estimate: int, shrink: bool,
    by: int, labels: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    (B, D), C = features.shape, mu.shape[0]
    wide = features.new_empty
    return (
        wide((B, C), dtype=torch.int32),
        wide((B, C), dtype=torch.int32),
        wide((B,), dtype=torch.int64),
        wide((3 * C + 2 + (C * (D + 1) if by else 0),), dtype=torch.float32),
        wide((3 * C + B,), dtype=torch.float64),
    )


_expectation = Operator("expectation", _forward, _fake)


def expectation(
    features: Tensor,  # (B, D)
    mu: Tensor,  # (C, D)
    mu_g: Tensor,  # (C, D)
    mu_f: Tensor,  # (C, D)
    pi: Tensor,  # (C,)
    tau: float,
    *,
    prior_estimate: str = "likelihood",  # "likelihood", "posterior" or "nearest"
    prior_shrinkage: bool = False,
    use_y_M: bool = False,  # class sums by y_M
    labels: Tensor | None = None,  # (B,) int64: class sums by these (4*); neither: no class sums yet
) -> Expectation:
    """reference.expectation(features, mu, mu_g, mu_f, pi, tau, ...), in two launches.

    E: the posteriors under mu, mu_g and mu_f from one read of the features, y_M, and the sums over the batch.
    The cosines are constants here: the gradient is that of `objective`.
    """
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
    by = BY_LABELS if labels is not None else BY_Y_M if use_y_M else BY_NOTHING
    cos_g, cos_f, y_M, statistics, scales = _expectation(
        features.detach(), mu.detach(), mu_g.detach(), mu_f.detach(), pi.detach().contiguous(), tau,
        ESTIMATES[prior_estimate], prior_shrinkage, by, labels,
    )  # fmt: skip
    colsum_g, colsum_f, prior_sum = statistics[: 3 * C].view(3, C)
    tail = statistics[3 * C + 2 :]
    return Expectation(
        features=features,
        mu_g=mu_g,
        mu_f=mu_f,
        tau=tau,
        cos_g=cos_g,
        cos_f=cos_f,
        y_M=y_M,
        statistics=statistics,
        colsum_g=colsum_g,
        colsum_f=colsum_f,
        prior_sum=prior_sum,
        rows=statistics[3 * C],
        bad_rows=statistics[3 * C + 1],
        counts=tail[:C] if by else None,
        sums=tail[C:].view(C, -1) if by else None,
        scales=scales,
    )
