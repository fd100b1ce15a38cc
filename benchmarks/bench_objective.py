"""C and the loss of both heads: kernels/objective.py against reference.objective."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import GAMMA_Q, Case, cases, measure


def _prepare(case: Case) -> Any:
    return case.expectation(case.inputs())


@cases
def test_objective(benchmark: Any, case: Case) -> None:
    objective = case.ops.objective
    with torch.no_grad():
        measure(benchmark, "objective", case, _prepare, lambda e: objective(e, GAMMA_Q, GAMMA_Q))
