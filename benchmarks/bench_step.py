"""One whole GeT step: forward, backward, memory. torch.compile takes the forward (with its backward) and the memory."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Case, Run, cases, forward, gradients, measure


def _step(case: Case, compiled: bool) -> Run:
    ops = case.ops
    wrap = torch.compile if compiled else lambda function: function
    ahead, update = wrap(forward), wrap(ops.update_memory_)

    def run(x: Any) -> object:
        loss, e = ahead(ops, x)
        found = gradients(loss, x)
        update(x.mu, x.pi, x.health, e, 0.01, 0.01)
        return found

    return run


@cases
def test_step(benchmark: Any, case: Case) -> None:
    measure(benchmark, "step", case, Case.inputs, _step(case, False), compiled=_step(case, True))
