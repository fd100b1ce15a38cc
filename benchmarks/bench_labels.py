"""Mixed labels and the structure loss by themselves: kernels/equations/labels.py against the reference."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import GAMMA_Q, TAU, Case, cases, measure
from fastget import reference


def _prepare(case: Case) -> Any:
    x = case.inputs()
    P = reference.posterior(x.features, x.mu_g, x.pi.log(), TAU)
    return reference.rebalance(P), P, x.labels


@cases
def test_labels(benchmark: Any, case: Case) -> None:
    ops = case.ops

    def run(prepared: Any) -> object:
        Q, P, y_M = prepared
        return ops.mixed_labels(Q, y_M, GAMMA_Q), ops.structure_loss(Q, P)

    with torch.no_grad():
        measure(benchmark, "labels", case, _prepare, run)
