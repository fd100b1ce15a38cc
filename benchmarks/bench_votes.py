"""The votes that pi starts from: kernels/equations/votes.py against fastget.methods.get.prior.agreeing_votes."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.common import Case, cases, measure
from fastget import kernels
from fastget.methods.get import prior


@cases("default")
def test_votes(benchmark: Any, case: Case) -> None:
    votes = kernels.agreeing_votes if case.row == "triton" else prior.agreeing_votes
    with torch.no_grad():
        measure(benchmark, "votes", case, Case.inputs, lambda x: votes(x.features, x.get.mu, x.weight))
