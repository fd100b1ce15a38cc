"""Eq. (3')'s votes against PyTorch's."""

from __future__ import annotations

import pytest
import torch

from fastget import kernels
from fastget.methods.get import prior
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import batch, nan_filled


@pytest.mark.parametrize("shape", [(1, 2, 3), (37, 67, 33), (300, 5, 8)], ids=str)
def test_votes_are_pytorchs(shape: tuple[int, int, int]) -> None:
    x = batch(*shape)
    source = x.mu + x.mu_g  # agrees with mu on some rows
    with nan_filled():
        votes = kernels.agreeing_votes(x.features, x.mu, source)
    assert torch.equal(votes.double(), prior.agreeing_votes(x.features.double(), x.mu.double(), source.double()))
    assert votes.sum(1)[:2].tolist() == [shape[0]] * 2
    same = kernels.agreeing_votes(x.features, x.mu, x.mu)
    assert torch.equal(same[2], same[0])


def test_a_tie_is_the_lowest_classes() -> None:
    votes = kernels.agreeing_votes(torch.randn(5, 3), torch.ones(40, 3), torch.ones(40, 3))
    assert votes.tolist() == [[5.0] + [0.0] * 39] * 3


def test_addresses_and_order() -> None:
    x = batch(67, 35, 9)
    with check_addresses():
        kernels.agreeing_votes(x.features, x.mu, x.mu_g)
    assert_order_free(lambda: (kernels.agreeing_votes(x.features, x.mu, x.mu_g),))
