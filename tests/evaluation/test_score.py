"""Metrics with one meaning each."""

import dataclasses

import pytest
import torch

from fastget.evaluation.score import score


def test_accuracy_and_mean_class_accuracy_differ() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    result = score(torch.arange(4), torch.tensor([0, 0, 0, 0]), torch.ones(4), labels, 3)
    assert result.accuracy == pytest.approx(0.75)
    assert result.mean_class_accuracy == pytest.approx(0.5)  # class 2 is not there
    assert result.per_class == [1.0, 0.0, None]


def test_without_labels_nothing_is_scored() -> None:
    result = score(torch.arange(2), torch.tensor([0, 1]), torch.ones(2), torch.tensor([-1, -1]), 2)
    assert result.metrics() == {"accuracy": None, "mean_class_accuracy": None}
    assert result.per_class == [None, None]


def test_the_validation_list_has_figures_of_its_own() -> None:
    labels, ones = torch.tensor([0, 0, 0, 1]), torch.ones(4)
    target = score(torch.arange(4), torch.tensor([1, 1, 1, 0]), ones, labels, 2, {"entropy": 0.3})
    assert target.logged() == {"accuracy": 0, "mean_class_accuracy": 0, "entropy": 0.3}
    assert target.criterion("validation") is None
    held_out = score(torch.arange(4), torch.tensor([0, 0, 0, 0]), ones, labels, 2, {"entropy": 0.1})
    both = dataclasses.replace(target, validation=held_out)
    assert both.logged() == target.logged() | {"validation_accuracy": 0.75, "validation_mean_class_accuracy": 0.5}
    assert both.metrics() == target.metrics()
    assert (both.criterion("validation"), both.criterion("entropy")) == (0.5, 0.3)
