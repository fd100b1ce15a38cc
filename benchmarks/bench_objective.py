"""C and the loss of both heads: kernels/objective.py against reference.objective."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Case, cases, measure


@cases()
def test_objective(benchmark: Any, case: Case) -> None:
    with torch.no_grad():
        measure(benchmark, "objective", case, lambda case: case.calls()["objective"], case.phase("objective"))
