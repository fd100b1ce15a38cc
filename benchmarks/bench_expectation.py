"""The whole E-step: kernels/expectation.py against reference.expectation."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Case, cases, measure


@cases()
def test_expectation(benchmark: Any, case: Case) -> None:
    with torch.no_grad():
        measure(benchmark, "expectation", case, lambda case: case.calls()["expectation"], case.phase("expectation"))
