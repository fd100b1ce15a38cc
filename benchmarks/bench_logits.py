"""The logits of three posteriors from one read of the features: kernels/logits.py against one stacked product."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Call, Case, cases, measure
from fastget import reference
from fastget.kernels.logits import launch_logits


def stacked(call: Call) -> object:
    features, mu, mu_g, mu_f, log_pi, tau = call.args
    cos = reference.cosine(features, torch.cat([mu, mu_g, mu_f]))
    return reference.first_argmax(cos[:, : len(mu)]), log_pi.repeat(3) + cos / tau


def fused(call: Call) -> object:
    features, mu, mu_g, mu_f, log_pi, tau = call.args
    estimate = call.options["estimate"].__name__
    return launch_logits(features, log_pi, tau, mu=mu, mu_g=mu_g, mu_f=mu_f, estimate=estimate)


@cases()
def test_logits(benchmark: Any, case: Case) -> None:
    with torch.no_grad():
        run = fused if case.row == "triton" else stacked
        measure(benchmark, "logits", case, lambda case: case.calls()["expectation"], run)
