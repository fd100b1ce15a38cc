"""E: the three posteriors' logits, y_M, and the sums over the batch, in two launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor

from fastget.kernels.checks import check_labels, check_like, check_pair, check_tau
from fastget.kernels.logits import Scales, launch_logits
from fastget.kernels.statistics import launch_statistics
from fastget.kernels.wrap import Operator
from fastget.reference import Expectation, likelihood, views

ESTIMATES = ("likelihood", "nearest")  # the functions of Eqs. (3) and (3*), by name


def run_expectation(
    features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, log_pi: Tensor, tau: float, estimate: str,
    labels: Optional[Tensor],  # noqa: UP045  (the form that every torch's schema inference reads)
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    made = launch_logits(features, log_pi, tau, mu=mu, mu_g=mu_g, mu_f=mu_f, estimate=estimate)
    assert made.S_g is not None
    assert made.S_f is not None
    assert made.norm_g is not None
    assert made.norm_f is not None
    y_M, statistics = launch_statistics(features, made, log_pi, estimate, labels)
    return made.S_g, made.S_f, y_M, statistics, made.norm, made.norm_g, made.norm_f


def _fake(
    features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, log_pi: Tensor, tau: float, estimate: str,
    labels: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    (B, D), C = features.shape, mu.shape[0]
    shapes = ((B, C), (B, C), (4 * C + 2 + C * D,), (B,), (C,), (C,))
    S_g, S_f, *rest = (features.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return (S_g, S_f, features.new_empty((B,), dtype=torch.int64), *rest)


_expectation = Operator("expectation", run_expectation, _fake)


def check_expectation(
    features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, log_pi: Tensor, tau: float, estimate: str,
    labels: Tensor | None,
) -> None:  # fmt: skip
    """ValueError if the E-step cannot take these."""
    check_pair(features, mu, "mu")
    C, device = mu.shape[0], features.device
    check_like("mu_g", mu_g, tuple(mu.shape), device)
    check_like("mu_f", mu_f, tuple(mu.shape), device)
    check_like("log_pi", log_pi, (C,), device)
    check_tau(tau)
    if estimate not in ESTIMATES:
        raise ValueError(
            "estimate must be reference.likelihood or fastget.methods.get.prior.nearest, got a function named "
            f"{estimate!r}: the kernels know no other; use backend='reference'"
        )
    if labels is not None:
        check_labels("labels", labels, features.shape[0], device)


def expectation(
    features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, log_pi: Tensor, tau: float, *,
    estimate: Callable[[Tensor, Tensor, float], Tensor] = likelihood,  # each image's share in P_bar, Eq. (3)
    labels: Tensor | None = None,  # class sums by these; None: by y_M, as Eq. (4) has it
) -> Expectation:  # fmt: skip
    """reference.expectation(features, mu, mu_g, mu_f, log_pi, tau, ...), in two launches.

    The logits are constants here: the gradient is that of `objective`.
    """
    name = getattr(estimate, "__name__", repr(estimate))
    check_expectation(features, mu, mu_g, mu_f, log_pi, tau, name, labels)
    log_pi = log_pi.detach().contiguous()
    S_g, S_f, y_M, statistics, norm, norm_g, norm_f = _expectation(
        features.detach(), mu.detach(), mu_g.detach(), mu_f.detach(), log_pi, tau, name, labels
    )
    e = Expectation(features, mu_g, mu_f, tau, S_g, S_f, y_M, statistics, *views(statistics, mu.shape[0]))
    return e._replace(scales=Scales(log_pi, norm, norm_g, norm_f))
