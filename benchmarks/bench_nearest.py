"""The start of the prior by agreement, Eq. (3'): kernels/equations/nearest.py against reference.agreeing_votes."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Case, cases, measure


@cases
def test_nearest(benchmark: Any, case: Case) -> None:
    votes = case.ops.agreeing_votes
    with torch.no_grad():
        measure(benchmark, "nearest", case, Case.inputs, lambda x: votes(x.features, x.mu, x.mu_g))
