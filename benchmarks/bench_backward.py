"""The gradients of the loss to features, mu_g and mu_f: kernels/backward.py against autograd over the reference."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.common import GAMMA_Q, Case, cases, gradients, measure


def _prepare(case: Case) -> Any:
    x = case.inputs()
    return case.ops.objective(case.expectation(x), GAMMA_Q, GAMMA_Q).loss, x


@cases
def test_backward(benchmark: Any, case: Case) -> None:
    if case.row == "compile":
        pytest.skip("torch.compile traces a forward and its backward together: see bench_objective and bench_step")
    measure(benchmark, "backward", case, _prepare, lambda prepared: gradients(*prepared))
