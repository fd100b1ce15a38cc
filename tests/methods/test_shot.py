"""SHOT: what its target phase trains on, and what it leaves alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fastget.data.domains import load_domains
from fastget.methods import formulas
from fastget.methods.base import Seen, Task
from fastget.methods.settings import SHOTSettings
from fastget.methods.shot import SHOT
from fastget.training.engine import Engine
from fastget.training.schedule import Plan
from tests.methods.plain import assert_equal, random
from tests.support import engine_of, tiny

N, C, D, B = 30, 4, 5, 6
UNREAD = 7  # an image that the pass could not read
SHORT = {"method__name": "shot", "data__limit": 100, "train__max_steps": 7, "train__warmup_steps": 3}


class Target:
    """The whole target as a method sees it, in another order than the list's, without one image."""

    features = tuple(random(N - 1, D).float().split(12))
    logits = random(N - 1, C, seed=1).float()
    index = torch.tensor([i for i in reversed(range(N)) if i != UNREAD])
    classifier = nn.Linear(D, C)
    source_means = torch.zeros(C, D)


def shot(setting: str = "uda", **given: Any) -> SHOT:
    method = SHOT(SHOTSettings(**given), Task(C, D, N, setting))
    method.start_epoch(Target())
    return method


def seen(z: Tensor) -> Seen:
    return Seen(random(B, D, seed=2), z, torch.tensor([0, 3, UNREAD, 12, 3, 29]), Target.classifier, 0.5)


@pytest.mark.parametrize(("setting", "given", "threshold"), [("uda", {}, 0.0), ("pda", {}, 0.4 * N / C),
                         ("pda", {"threshold_share": 0.8}, 0.8 * N / C), ("uda", {"threshold": 7.0}, 7.0)])  # fmt: skip
def test_its_labels_are_the_formulas_in_float64(setting: str, given: dict[str, Any], threshold: float) -> None:
    method = shot(setting, **given)
    f, p = torch.cat(Target.features).double(), Target.logits.double().softmax(1)
    assert torch.equal(method.assigned[Target.index], formulas.shot_labels(f, p, threshold))
    assert method.assigned[UNREAD] == -1
    said, sure = method.pseudo_labels(seen(random(B, C)))["centroids"]
    assert torch.equal(said, method.assigned[seen(random(B, C)).index])
    assert ((sure >= 0) & (sure <= 1)).all()
    shares = method.figures()["labels/classes"]
    torch.testing.assert_close(shares, torch.bincount(method.assigned[Target.index], minlength=C) / (N - 1))


@pytest.mark.parametrize(
    ("setting", "given", "weight", "balance"),
    [
        ("uda", {}, 0.3, True),
        ("pda", {}, 0.3, False),
        ("pda", {"balance": "on"}, 0.3, True),
        ("uda", {"balance": "off", "labels": 0.1}, 0.1, False),
        ("uda", {"labels": 0.0}, 0.0, True),
        ("uda", {"late": 1}, 0.0, True),
    ],
)
def test_its_term(setting: str, given: dict[str, Any], weight: float, balance: bool) -> None:
    """Without smoothing; an image without a label has no part in the mean."""
    method, z = shot(setting, **given), random(B, C, seed=3).requires_grad_()
    index = seen(z).index
    rows = index != UNREAD
    labels = shot(setting).assigned[index][rows]
    on_labels = -z.log_softmax(1)[rows].gather(1, labels[:, None]).mean()
    wanted = formulas.shot_im(z, balance) + weight * on_labels
    loss = method(seen(z)).loss
    assert_equal(loss, wanted)
    assert_equal(torch.autograd.grad(loss, z)[0], torch.autograd.grad(wanted, z)[0])


def test_the_labels_may_come_late() -> None:
    method, z = shot(late=1), random(B, C, seed=3)
    before = method(seen(z)).loss
    method.start_epoch(Target())
    assert_equal(method(seen(z)).loss, shot()(seen(z)).loss)
    assert not torch.equal(before, method(seen(z)).loss)


def test_shot_im_never_looks_at_the_whole_target() -> None:
    assert SHOT(SHOTSettings(), Task(C, D, N)).extra == {"each epoch"}
    alone = SHOT(SHOTSettings(labels=0.0), Task(C, D, N))
    assert not alone.extra
    alone.start_epoch(None)  # type: ignore[arg-type]  # it is not touched
    assert (alone.pseudo_labels(seen(random(B, C))), alone.figures()) == ({}, {})


@pytest.mark.parametrize(("steps", "period"), [(150, 10), (164, 10), (7, 1)])
def test_the_labels_are_made_fifteen_times(steps: int, period: int) -> None:
    plan = Plan(epoch_steps=40, max_steps=100 + steps, warmup_steps=100, eval_every=10, checkpoint_every=10)
    assert SHOT(SHOTSettings(), Task(C, D, N)).period(plan) == period


def classifier_of(engine: Engine) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in engine.network.classifier.state_dict().items()}


def test_the_target_phase_reads_no_source_and_leaves_the_classifier() -> None:
    """To the bit; what was learned before it by the source alone moves in the backbone and bottleneck."""
    engine = engine_of(**SHORT)
    assert {"parametrizations.weight.original0", "parametrizations.weight.original1"} < classifier_of(engine).keys()
    start, kept = classifier_of(engine), {}
    for step in engine.steps():
        if step.number == 3:
            assert engine.meter.passes == {"source": 3 * 3 * 16}
            engine.meter.passes, kept = {}, classifier_of(engine)
        engine.train_step(step)
    assert engine.meter.passes == {"target": 4 * 3 * 16}
    assert not all(torch.equal(kept[name], start[name]) for name in start)
    assert all(torch.equal(value, kept[name]) for name, value in classifier_of(engine).items())
    assert isinstance(engine.method, SHOT)
    assert engine.method.interval == 4


def trained(permuted: bool) -> dict[str, Tensor]:
    config = tiny("run", **SHORT)
    domains = load_domains(config.data)
    if permuted:
        order = np.random.default_rng(0).permutation(len(domains.target))
        target = dataclasses.replace(domains.target, labels=domains.target.labels[order])
        domains = dataclasses.replace(domains, target=target)
    engine = Engine(config, 0, domains, torch.device("cpu"))
    for step in engine.steps():
        engine.train_step(step)
    return engine.model.state_dict()


def test_the_targets_labels_do_nothing() -> None:
    ours, other = trained(False), trained(True)
    assert ours.keys() == other.keys()
    assert all(torch.equal(ours[name], other[name]) for name in ours)
