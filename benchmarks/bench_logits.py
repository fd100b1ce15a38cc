"""The logits of three posteriors from one read of the features: kernels/logits.py against one stacked product."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import TAU, Case, cases, measure
from fastget import reference
from fastget.kernels.logits import launch_logits


def stacked(x: Any) -> object:
    cos = reference.cosine(x.features, torch.cat([x.mu, x.mu_g, x.mu_f]))
    return reference.first_argmax(cos[:, : len(x.mu)]), x.pi.log().repeat(3) + cos / TAU


def _triton(x: Any) -> object:
    return launch_logits(x.features, x.pi, TAU, mu=x.mu, mu_g=x.mu_g, mu_f=x.mu_f)


@cases
def test_logits(benchmark: Any, case: Case) -> None:
    with torch.no_grad():
        measure(benchmark, "logits", case, Case.inputs, _triton if case.row == "triton" else stacked)
