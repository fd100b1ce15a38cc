"""y_M and the sums over the batch: kernels/statistics.py against softmaxes, sums and a one-hot product."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.common import TAU, Case, cases, measure
from fastget import reference
from fastget.kernels.logits import launch_logits
from fastget.kernels.statistics import launch_statistics


class _Inputs(NamedTuple):
    features: Tensor
    labels: Tensor
    S: tuple[Tensor, Tensor, Tensor]  # under mu, mu_g, mu_f
    logits: Any


def _prepare(case: Case) -> _Inputs:
    x = case.inputs()
    S = [x.pi.log() + reference.cosine(x.features, m) / TAU for m in (x.mu, x.mu_g, x.mu_f)]
    logits = None
    if case.row == "triton":
        logits = launch_logits(x.features, x.pi, TAU, mu=x.mu, mu_g=x.mu_g, mu_f=x.mu_f)
    return _Inputs(x.features, x.labels, (S[0], S[1], S[2]), logits)


def _reference(x: _Inputs) -> object:
    S, S_g, S_f = x.S
    sums, counts = reference.class_sums(x.features, x.labels, S.shape[1])
    columns = S_g.softmax(1).sum(0), S_f.softmax(1).sum(0)
    return reference.first_argmax(S), torch.cat([*columns, columns[0], counts, sums.flatten()])


def _triton(x: _Inputs) -> object:
    return launch_statistics(x.features, x.logits, "posterior", False, x.labels)


@cases
def test_statistics(benchmark: Any, case: Case) -> None:
    with torch.no_grad():
        measure(benchmark, "statistics", case, _prepare, _triton if case.row == "triton" else _reference)
