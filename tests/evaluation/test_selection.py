"""The label-free criteria against plain computations."""

import math

import pytest
import torch

from fastget.evaluation.selection import better, criteria, entropy, neighbourhood_density


def test_entropy_of_uniform_and_certain() -> None:
    assert entropy(torch.full((4,), 0.25)).item() == pytest.approx(math.log(4))
    assert entropy(torch.tensor([1.0, 0.0])).item() == 0


def test_mutual_information() -> None:
    P = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = criteria(0.0, P.mean(0), P)
    assert found["mutual_information"] == pytest.approx(math.log(2))


def test_neighbourhood_density_by_hand() -> None:
    P = torch.softmax(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), 1).double()
    rows = []
    for i in range(6):
        cos = [float(P[i] @ P[j] / P[i].norm() / P[j].norm()) / 0.05 for j in range(6) if j != i]
        q = torch.softmax(torch.tensor(cos, dtype=torch.float64), 0)
        rows.append(float(-(q * q.log()).sum()))
    assert neighbourhood_density(P) == pytest.approx(sum(rows) / 6, abs=1e-9)


def test_better() -> None:
    assert better("entropy", 0.1, 0.2)
    assert better("mutual_information", 0.3, 0.2)
    assert not better("neighbourhood_density", 0.1, 0.2)
    assert better("validation", 0.3, 0.2)
    assert not better("validation", 0.2, 0.2)  # the first of equals stays
    assert better("entropy", 0.1, None)
    assert not better("entropy", None, 0.1)
