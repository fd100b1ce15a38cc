"""One posterior by itself, forward: kernels/equations/posterior.py against reference.posterior."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import TAU, Case, cases, measure


@cases
def test_posterior(benchmark: Any, case: Case) -> None:
    posterior = case.ops.posterior
    with torch.no_grad():
        measure(
            benchmark, "posterior", case, Case.inputs, lambda x: posterior(x.features, x.mu_g, x.pi.log(), TAU)
        )  # fmt: skip
