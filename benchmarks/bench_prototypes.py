"""Class sums, prototypes and prior by themselves: kernels/equations/prototypes.py against the reference."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Case, cases, measure


@cases
def test_prototypes(benchmark: Any, case: Case) -> None:
    ops = case.ops

    def run(x: Any) -> object:
        sums, counts = ops.class_sums(x.features, x.labels, len(x.mu))
        return ops.update_prototypes(x.mu, sums, counts, 0.01), ops.update_prior(x.pi, x.pi, 0.01)

    with torch.no_grad():
        measure(benchmark, "prototypes", case, Case.inputs, run)
