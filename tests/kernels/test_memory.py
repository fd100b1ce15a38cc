"""The memory update against the reference in float64: prototypes, prior, health, and what refuses it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastget import kernels, reference
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import SHAPES, Batch, batch, error, nan_filled, step_inputs


def updated(
    ops: Any, x: Batch, how: str, *, health: Tensor | None = None, gamma_mu: float = 0.3,
    estimate: str = "likelihood", **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """mu, pi and health after one update, with the class sums made `how`: by "labels" or by "y_M"."""
    labels = x.labels if how == "labels" else None
    e = ops.expectation(*step_inputs(x), 0.2, prior_estimate=estimate, use_y_M=how == "y_M", labels=labels)
    mu, pi = x.mu.clone(), x.pi.clone()
    health = torch.tensor([4, -1]) if health is None else health.clone()
    with nan_filled():
        ops.update_memory_(mu, pi, health, e, gamma_mu, 0.1, **options)
    return mu, pi, health


@pytest.mark.parametrize("how", ["labels", "y_M"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_reference(shape: tuple[int, int, int], how: str) -> None:
    x = batch(*shape)
    mu, pi, health = updated(kernels, x, how)
    wanted_mu, wanted_pi, wanted_health = updated(reference, x.to(torch.float64), how)
    assert error(mu, wanted_mu) < 1e-6
    assert error(pi, wanted_pi) < 1e-7
    assert torch.equal(health, wanted_health)


def test_a_class_without_a_sample_keeps_its_bits() -> None:
    x = batch(6, 40, 9)
    mu, _, _ = updated(kernels, x, "labels")
    absent = [c for c in range(40) if c not in x.labels.tolist()]
    assert torch.equal(mu[absent], x.mu[absent])
    assert not torch.equal(mu[x.labels], x.mu[x.labels])


def test_all_of_one_class_and_whole_steps() -> None:
    x = batch(9, 5, 7)
    x.labels.fill_(3)
    mu, _, _ = updated(kernels, x, "labels", gamma_mu=1.0)
    assert error(mu[3], x.features.double().mean(0)) < 1e-6
    assert torch.equal(mu[:3], x.mu[:3])


def test_a_floor_under_the_prior() -> None:
    x = batch(12, 30, 6)
    _, pi, _ = updated(kernels, x, "labels", estimate="nearest", floor=1e-4)
    _, wanted, _ = updated(reference, x.to(torch.float64), "labels", estimate="nearest", floor=1e-4)
    assert float(pi.min()) == pytest.approx(1e-4)
    assert error(pi, wanted) < 1e-7


@pytest.mark.parametrize("how", ["labels", "y_M"])
def test_a_bad_row_is_refused_and_noted_once(how: str) -> None:
    x = batch(8, 6, 5)
    x.features[1, 2] = float("inf")
    mu, pi, health = updated(kernels, x, how)
    assert torch.equal(mu, x.mu)
    assert torch.equal(pi, x.pi)
    assert health.tolist() == [5, 4]
    _, _, health = updated(kernels, x, how, health=torch.tensor([9, 4]))
    assert health.tolist() == [10, 4], "the first refused step stays"


@pytest.mark.parametrize("skip", [torch.tensor(1.0), torch.tensor(True), torch.tensor([2])], ids=str)
def test_skip_leaves_the_memory_alone(skip: Tensor) -> None:
    x = batch(8, 6, 5)
    mu, pi, health = updated(kernels, x, "labels", skip=skip)
    assert torch.equal(mu, x.mu)
    assert torch.equal(pi, x.pi)
    assert health.tolist() == [5, -1]
    moved, _, _ = updated(kernels, x, "labels", skip=torch.zeros_like(skip))
    assert not torch.equal(moved, x.mu)


def test_strided_memory_and_sums() -> None:
    x = batch(9, 7, 12)
    wanted, _, _ = updated(kernels, x, "labels")
    mu = x.mu.T.contiguous().T
    e = kernels.expectation(*step_inputs(x), 0.2, labels=x.labels)
    assert e.sums is not None
    e = e._replace(sums=e.sums.T.contiguous().T)
    kernels.update_memory_(mu, x.pi.clone(), torch.tensor([0, -1]), e, 0.3, 0.1)
    assert torch.equal(mu, wanted)


def test_refusals() -> None:
    x = batch(4, 5, 6)
    health = torch.tensor([0, -1])
    with pytest.raises(ValueError, match="needs class sums"):
        kernels.update_memory_(x.mu, x.pi, health, kernels.expectation(*step_inputs(x), 0.2), 0.1, 0.1)
    e = kernels.expectation(*step_inputs(x), 0.2, labels=x.labels)
    with pytest.raises(ValueError, match=r"prior_sum of the expectation must have shape \(4,\), got \(5,\)"):
        kernels.update_memory_(x.mu[:4], x.pi[:4], health, e, 0.1, 0.1)
    with pytest.raises(ValueError, match="float32"):
        kernels.update_memory_(x.mu.half(), x.pi, health, e, 0.1, 0.1)
    with pytest.raises(ValueError, match=r"int64 of shape \(2,\)"):
        kernels.update_memory_(x.mu, x.pi, health.int(), e, 0.1, 0.1)
    pi = torch.stack([x.pi, x.pi], 1)[:, 0]
    with pytest.raises(ValueError, match="contiguous"):
        kernels.update_memory_(x.mu, pi, health, e, 0.1, 0.1)


def test_addresses_and_order() -> None:
    x = batch(33, 35, 20)
    with check_addresses():
        e = kernels.expectation(*step_inputs(x), 0.2, labels=x.labels)
        kernels.update_memory_(x.mu.clone(), x.pi.clone(), torch.tensor([0, -1]), e, 0.1, 0.1)
    assert_order_free(lambda: updated(kernels, x, "labels"), seeds=(1,))
