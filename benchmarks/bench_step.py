"""One whole GeT step: forward, backward, memory. torch.compile takes the forward (with its backward)."""

from __future__ import annotations

from typing import Any

from benchmarks.common import Case, cases, measure
from fastget.selftest.kernels import forward_backward


def _prepare(case: Case) -> Any:
    x = case.inputs()
    assert x.get.prior  # as a step before leaves it
    if case.row == "compile":
        x.get.compile(dynamic=False)
    return x


@cases()
def test_step(benchmark: Any, case: Case) -> None:
    measure(benchmark, "step", case, _prepare, forward_backward, compiled=forward_backward)
