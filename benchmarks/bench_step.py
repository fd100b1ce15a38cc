"""One whole GeT step: forward, backward, memory."""

from __future__ import annotations

from typing import Any

from benchmarks.common import Case, cases, measure
from fastget.selftest_kernels import forward_backward


@cases
def test_step(benchmark: Any, case: Case) -> None:
    ops = case.ops
    measure(benchmark, "step", case, Case.inputs, lambda x: forward_backward(ops, x))
