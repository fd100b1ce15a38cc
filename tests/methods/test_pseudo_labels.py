"""The labels that a method tells a report of are those that it would train on."""

import pytest
import torch
from torch import nn

from fastget import reference
from fastget.methods.base import Seen, Task
from fastget.methods.get.method import GetMethod
from fastget.methods.settings import Get
from fastget.methods.source_only import SourceOnly


def seen(rows: int, classes: int, width: int) -> Seen:
    torch.manual_seed(0)
    classifier = nn.Linear(width, classes)
    features = torch.randn(rows, width)
    with torch.no_grad():
        return Seen(features, classifier(features), torch.arange(rows), classifier, 0.5)


@pytest.mark.parametrize(
    "config", [Get(), Get(rebalance_gate=False), Get(prior_cap=False), Get(prior_cap=False, prior_shrinkage=True)]
)
def test_get(config: Get) -> None:
    shown = seen(40, 5, 8)
    method = GetMethod(config, Task(5, 8, 40))
    method.get.initialise(shown.features, shown.logits.argmax(1), shown.classifier.weight, torch.eye(5, 8))
    method.get.pi.copy_(torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05]))
    state = {name: value.clone() for name, value in method.state_dict().items()}
    given = method.pseudo_labels(shown)
    assert list(given) == ["y_M", "Q_g", "Q_f"]
    e = method.keep(shown).expectation  # of a step on the same batch
    assert torch.equal(given["y_M"][0], e.y_M)
    for name, S, colsum in (("Q_g", e.S_g, e.colsum_g), ("Q_f", e.S_f, e.colsum_f)):
        assert (e.exponent is None) == (not config.rebalance_gate)
        a = 0.5 if e.exponent is None else float(e.exponent)
        Q = reference.rebalance(S.softmax(1).pow(1 + 3 * (1 - 2 * a)), colsum.pow(2 * a))
        labels, confidence = given[name]
        torch.testing.assert_close(confidence, Q.max(1).values)
        assert torch.equal(labels, Q.argmax(1))
        assert not confidence.requires_grad
    assert all(torch.equal(value, state[name]) for name, value in method.state_dict().items())


def test_others_name_none() -> None:
    assert SourceOnly(SourceOnly.Config(), Task(5, 8, 40)).pseudo_labels(seen(4, 5, 8)) == {}
