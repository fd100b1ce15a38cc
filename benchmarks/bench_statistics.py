"""y_M and the sums over the batch: kernels/statistics.py against softmaxes, sums and a one-hot product."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.bench_logits import fused
from benchmarks.common import Call, Case, cases, measure
from fastget import reference
from fastget.kernels.statistics import launch_statistics


class _Inputs(NamedTuple):
    call: Call
    cos: tuple[Tensor, Tensor]  # with mu, mu_g
    S: tuple[Tensor, Tensor, Tensor]  # under mu, mu_g, mu_f
    logits: Any  # the launch's


def _prepare(case: Case) -> _Inputs:
    call = case.calls()["expectation"]
    features, mu, mu_g, mu_f, log_pi, tau = call.args
    cos, cos_g, cos_f = (reference.cosine(features, m) for m in (mu, mu_g, mu_f))
    S, S_g, S_f = (reference.logits(c, log_pi, tau) for c in (cos, cos_g, cos_f))
    return _Inputs(call, (cos, cos_g), (S, S_g, S_f), fused(call) if case.row == "triton" else None)


def _reference(x: _Inputs) -> object:
    (features, *_, tau), (S, S_g, S_f) = x.call.args, x.S
    y_M, labels = reference.first_argmax(S), x.call.options["labels"]
    sums, counts = reference.class_sums(features, y_M if labels is None else labels, S.shape[1])
    P_bar = x.call.options["estimate"](*x.cos, tau).sum(0)
    return y_M, torch.cat([S_g.softmax(1).sum(0), S_f.softmax(1).sum(0), P_bar, counts, sums.flatten()])


def _triton(x: _Inputs) -> object:
    features, *_, log_pi, _ = x.call.args
    return launch_statistics(features, x.logits, log_pi, x.call.options["estimate"].__name__, x.call.options["labels"])


@cases()
def test_statistics(benchmark: Any, case: Case) -> None:
    with torch.no_grad():
        measure(benchmark, "statistics", case, _prepare, _triton if case.row == "triton" else _reference)
