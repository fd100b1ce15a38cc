"""The memory update, and what the next step takes of pi: kernels/memory.py against reference.update_memory_."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Case, cases, measure


@cases()
def test_memory(benchmark: Any, case: Case) -> None:
    with torch.no_grad():
        measure(benchmark, "memory", case, lambda case: case.calls()["update_memory_"], case.phase("update_memory_"))
