"""The same logits by way of bfloat16 copies of the prototypes: kernels/copied.py against one stacked product.

Classes and width are rounded up to eights and sixteens, which copies need. The largest shape is where a step takes
them by itself.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.bench_logits import stacked
from benchmarks.common import TAU, Case, cases, measure
from fastget.kernels.copied import launch_copied_logits


def _triton(x: Any) -> object:
    return launch_copied_logits(x.features, x.pi, TAU, x.mu, x.mu_g, x.mu_f, "posterior", 0)


@cases
def test_copied(benchmark: Any, case: Case) -> None:
    B, C, D = case.shape
    rounded = Case((B, -C // 8 * -8, -D // 16 * -16), case.row)
    with torch.no_grad():
        measure(benchmark, "copied", rounded, Case.inputs, _triton if case.row == "triton" else stacked)
