"""The memory update: kernels/memory.py against reference.update_memory_."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Case, cases, measure


def _prepare(case: Case) -> Any:
    x = case.inputs()
    return x, case.expectation(x)


@cases
def test_memory(benchmark: Any, case: Case) -> None:
    update = case.ops.update_memory_

    def run(prepared: Any) -> None:
        x, e = prepared
        update(x.mu, x.pi, x.health, e, 0.01, 0.01)

    with torch.no_grad():
        measure(benchmark, "memory", case, _prepare, run)
