"""The labels that a method tells a report of are those that it would train on."""

import math

import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize("config", [Get(), Get(partial="yes"), Get(prior="plain")])
def test_get(config: Get) -> None:
    shown = seen(40, 5, 8)
    method = GetMethod(config, Task(5, 8, 40))
    method.get.initialise(shown.features, shown.logits.argmax(1), shown.classifier.weight, torch.eye(5, 8))
    method.get.pi.copy_(torch.tensor([0.6, 0.25, 0.1, 0.03, 0.02]))
    method.get.trust.fill_(1)
    state = {name: value.clone() for name, value in method.state_dict().items()}
    given = method.pseudo_labels(shown)
    assert list(given) == ["y_M", "Q_g", "Q_f"]
    e = method.keep(shown).expectation  # of a step on the same batch
    assert torch.equal(given["y_M"][0], e.y_M)
    spread = math.exp(-sum(p * math.log(p) for p in method.get.pi.tolist())) / 5
    narrow = 1 if config.partial == "yes" else (0.70 - spread) / 0.15 if config.prior == "trusted" else 0
    assert narrow in (0, 1) or 0.2 < narrow < 0.9
    for name, S, colsum in (("Q_g", e.S_g, e.colsum_g), ("Q_f", e.S_f, e.colsum_f)):
        Q = S.softmax(1).pow(1 + 3 * narrow) / colsum.pow((1 - narrow) / 2)
        Q = Q / Q.sum(1, keepdim=True)
        labels, confidence = given[name]
        torch.testing.assert_close(confidence, Q.max(1).values)
        assert torch.equal(labels, Q.argmax(1))
        assert not confidence.requires_grad
    assert all(torch.equal(value, state[name]) for name, value in method.state_dict().items())


def test_others_name_none() -> None:
    assert SourceOnly(SourceOnly.Config(), Task(5, 8, 40)).pseudo_labels(seen(4, 5, 8)) == {}
