"""Column sums of a (B, C) matrix: kernels/equations/columns.py against torch.sum."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import DEVICE, Case, cases, measure
from fastget.kernels.equations.columns import launch_column_sums


def _prepare(case: Case) -> Any:
    B, C, _ = case.shape
    return torch.rand(B, C, device=DEVICE)


@cases("default")
def test_columns(benchmark: Any, case: Case) -> None:
    sums = launch_column_sums if case.row == "triton" else lambda x: x.sum(0)
    measure(benchmark, "columns", case, _prepare, sums)
