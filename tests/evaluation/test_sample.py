"""The draw of a list that a run looks at more closely, and what labels of it are worth."""

from typing import Any

import numpy as np
import pytest
import torch

from fastget.common.ranks import Ranks
from fastget.evaluation.infer import Inferred
from fastget.evaluation.sample import Sample, quality


def rows(places: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, np.ndarray[Any, np.dtype[np.int64]]]:
    """Images that tell where they lie: features (n, 3), logits (n, 2), labels, places."""
    place = np.array(places, dtype=np.int64)
    features = torch.from_numpy(place).float()[:, None].expand(-1, 3)
    return features, features[:, :2] * torch.tensor([1.0, -1.0]), torch.from_numpy(place % 2), place


def test_the_draw_is_fixed_and_in_the_lists_order() -> None:
    sample = Sample(10, 4, Ranks())
    assert len(sample) == 4
    assert (Sample(10, 4, Ranks()).chosen == sample.chosen).all()
    sample.add(*rows([7, 3, 9, 0, 1]))
    sample.add(*rows([2, 4, 5, 6, 8]))
    found = sample.read()
    assert found is not None
    drawn = np.flatnonzero(sample.chosen).tolist()
    assert found.place.tolist() == drawn
    assert found.features[:, 0].tolist() == drawn
    assert found.labels.tolist() == [place % 2 for place in drawn]
    assert sample.read() is None  # read once


def test_a_whole_pass_is_the_same() -> None:
    one, other = Sample(10, 4, Ranks()), Sample(10, 4, Ranks())
    features, logits, labels, place = rows(list(range(10)))
    one.add(features, logits, labels, place)
    other.add_all(Inferred(list(features.split(3)), logits, labels, place))
    a, b = one.read(), other.read()
    assert a is not None
    assert b is not None
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_none_is_drawn_from_nothing() -> None:
    sample = Sample(10, 0, Ranks())
    sample.add(*rows([1, 2]))
    assert sample.read() is None


def test_ranks_put_their_parts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, other = Sample(10, 6, Ranks(0, 2)), Sample(10, 6, Ranks(1, 2))
    sample.add(*rows([0, 2, 4, 6, 8]))
    other.add(*rows([1, 3, 5, 7, 9]))
    monkeypatch.setattr(Ranks, "gather", lambda self, parts: [parts, other._parts])
    found = sample.read()
    assert found is not None
    assert found.place.tolist() == np.flatnonzero(sample.chosen).tolist()


def test_quality() -> None:
    labels, truth = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 0])
    confidence = torch.tensor([0.95, 0.5, 0.9, 0.2])
    assert quality(labels, confidence, truth, 4) == {
        "coverage": 0.5,
        "classes": 3,
        "accuracy": 0.5,
        "accuracy_sure": 0.5,
    }
    unknown = quality(labels, confidence, torch.full((4,), -1), 4)
    assert (unknown["accuracy"], unknown["accuracy_sure"], unknown["coverage"]) == (None, None, 0.5)
    none = quality(torch.tensor([-1, 1]), torch.zeros(2), torch.tensor([0, 1]), 4)
    assert (none["accuracy"], none["accuracy_sure"], none["classes"]) == (0.5, None, 1)
