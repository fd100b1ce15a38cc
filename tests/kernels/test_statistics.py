"""The statistics launch by itself: the packed buffer that many ranks add up."""

from __future__ import annotations

from dataclasses import replace

import torch

from fastget import kernels, reference
from tests.kernels.support import batch, error, nan_filled, step_inputs


def test_ranks_add_up() -> None:
    """Two halves of a batch, each on its own, have the sums of the whole."""
    x = batch(26, 17, 9)
    whole = kernels.expectation(*step_inputs(x), 0.2, labels=x.labels)
    total = torch.zeros_like(whole.statistics)
    for part in (slice(0, 11), slice(11, 26)):
        half = kernels.expectation(x.features[part], x.mu, x.mu_g, x.mu_f, x.pi.log(), 0.2, labels=x.labels[part])
        total += half.statistics
    assert error(total, whole.statistics) < 1e-5


def test_class_sums_skip_blocks_without_a_member() -> None:
    """Rows sorted by class, so that most blocks of rows hold none of a tile's classes."""
    x = replace(batch(200, 40, 5), labels=torch.arange(200) // 5)
    with nan_filled():
        e = kernels.expectation(*step_inputs(x), 0.2, labels=x.labels)
    expected, _ = reference.class_sums(x.features.double(), x.labels, 40)
    assert error(e.sums, expected) < 2e-6
    assert e.counts.tolist() == [5.0] * 40


def test_int32_labels() -> None:
    x = batch(9, 6, 5)
    wide = kernels.expectation(*step_inputs(x), 0.2, labels=x.labels)
    narrow = kernels.expectation(*step_inputs(x), 0.2, labels=x.labels.int())
    assert torch.equal(wide.statistics, narrow.statistics)
