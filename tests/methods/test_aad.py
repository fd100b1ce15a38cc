"""AaD: its memory is the whole target's from the start, its term the formula, and it reads no source."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fastget.config import make_config
from fastget.data.domains import load_domains
from fastget.methods import formulas
from fastget.methods.aad import AaD
from fastget.methods.base import Seen, Task
from fastget.methods.settings import AaDSettings
from fastget.training.engine import Engine
from tests.methods.plain import assert_equal, random
from tests.support import tiny

N, C, D, B = 30, 4, 5, 6
UNREAD = 7  # an image that the pass could not read
SHORT = {"method__name": "aad", "data__limit": 100, "train__max_steps": 7, "train__warmup_steps": 3}


class Target:
    """The whole target as a method sees it, in another order than the list's, without one image."""

    features = tuple(random(N - 1, D).split(12))
    logits = random(N - 1, C, seed=1)
    index = torch.tensor([i for i in reversed(range(N)) if i != UNREAD])
    classifier = nn.Linear(D, C)
    source_means = torch.zeros(C, D)


def started(decay: float = 0.0) -> AaD:
    method = AaD(AaDSettings(decay=decay), Task(C, D, N)).double()
    method.start(Target())
    return method


def seen(z: Tensor) -> Seen:
    return Seen(random(B, D, seed=2), z, torch.tensor([0, 3, UNREAD, 12, 4, 29]), Target.classifier, 0.5)


def test_its_memory_is_the_whole_target() -> None:
    method, f = started(), torch.cat(Target.features)
    assert_equal(method.memory_f[Target.index], f / f.norm(dim=1, keepdim=True))
    assert_equal(method.memory_q[Target.index], Target.logits.softmax(1))
    assert not method.memory_f[UNREAD].any()
    method.check()
    assert_equal(method.figures()["memory/filled"].double(), torch.tensor((N - 1) / N).double())


@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_its_term_is_the_formula(decay: float) -> None:
    """Of the three nearest, itself and what was not read left out."""
    method, z = started(decay), random(B, C, seed=3).requires_grad_()
    batch = seen(z)
    cosines = batch.features @ method.memory_f.T
    cosines[torch.arange(B), batch.index] = -torch.inf
    cosines[:, UNREAD] = -torch.inf
    near = method.memory_q[cosines.topk(3).indices]
    wanted = formulas.aad(z, near, 6.0**-decay)  # t = 0.5
    loss = method(batch).loss
    assert_equal(loss, wanted)
    assert_equal(torch.autograd.grad(loss, z)[0], torch.autograd.grad(wanted, z)[0])


def test_a_step_renews_its_rows_alone() -> None:
    method = started()
    before, batch = method.memory_q.clone(), seen(random(B, C, seed=3))
    term = method(batch)
    method.after_step(batch, term, torch.ones(()), lambda: batch)
    assert torch.equal(method.memory_q, before)  # the step was skipped
    method.after_step(batch, term, None, lambda: batch)
    assert_equal(method.memory_q[batch.index], batch.logits.softmax(1))
    others = [i for i in range(N) if i not in batch.index]
    assert torch.equal(method.memory_q[others], before[others])


def trained(permuted: bool) -> Engine:
    config = tiny("run", **SHORT)
    domains = load_domains(config.data)
    if permuted:
        order = np.random.default_rng(0).permutation(len(domains.target))
        target = dataclasses.replace(domains.target, labels=domains.target.labels[order])
        domains = dataclasses.replace(domains, target=target)
    engine = Engine(config, 0, domains, torch.device("cpu"))
    for step in engine.steps():
        engine.train_step(step)
    return engine


def test_neither_the_source_nor_the_targets_labels_do_anything_after_the_warm_up() -> None:
    one, other = trained(False), trained(True)
    assert one.meter.passes == {"source": 3 * 3 * 16, "target": 4 * 3 * 16}
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_target_that_lacks_classes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"aad is made for data.setting=uda, got pda: its dispersing part .* lacks"):
        make_config({"method.name": "aad", "data.setting": "pda"})
