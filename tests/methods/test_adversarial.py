"""dann, safn, daln, scda: what each does to the features and to what stands behind them, and that no label of the
target does anything."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fastget.config import Config
from fastget.data.domains import load_domains
from fastget.methods import formulas
from fastget.methods.base import Labelled, Seen, Task
from fastget.methods.daln import DALN
from fastget.methods.dann import DANN
from fastget.methods.safn import SAFN
from fastget.methods.scda import SCDA
from fastget.methods.settings import DALNSettings, DANNSettings, SAFNSettings, SCDASettings
from fastget.networks.network import CosineHead
from fastget.training.engine import Engine
from tests.methods.plain import assert_equal, random
from tests.support import tiny

B, C, D = 6, 4, 5
TASK = Task(C, D, 50)
LABELS = torch.tensor([0, 1, 2, 3, 0, 1])


def features() -> tuple[Tensor, Tensor]:
    """Of source and target, leaves."""
    return random(B, D).requires_grad_(), random(B, D, seed=1).requires_grad_()


def head() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(D, C).double()


def seen_by(classifier: nn.Linear, f_s: Tensor, f: Tensor, progress: float = 0.5, shots: Tensor | None = None) -> Seen:
    of_shots = None if shots is None else Labelled(shots, classifier(shots), LABELS[: len(shots)])
    source = Labelled(f_s, classifier(f_s), LABELS)
    return Seen(f, classifier(f), torch.arange(len(f)), classifier, progress, source, of_shots)


def test_dann_is_its_formula_and_the_features_go_the_other_way() -> None:
    (f_s, f), shots = features(), random(2, D, seed=2).requires_grad_()
    method = DANN(DANNSettings(hidden=7), TASK).double()
    given = (f_s, f, shots, *method.discriminator.parameters())
    wanted = formulas.dann(method.discriminator(torch.cat([f_s, f, shots])), B)  # SSDA's shots are of the target
    slopes = torch.autograd.grad(wanted, given)
    for progress in (0.0, 0.5):
        term = method(seen_by(head(), f_s, f, progress, shots))
        assert_equal(term.loss, wanted)
        factor = float(formulas.warm_reversal(progress, 10.0))
        assert (factor == 0) == (progress == 0)
        for i, (mine, slope) in enumerate(zip(torch.autograd.grad(term.loss, given), slopes, strict=True)):
            assert_equal(mine, -factor * slope if i < 3 else slope)


@pytest.mark.parametrize(
    ("given", "each"),
    [
        ({}, lambda f: formulas.safn(f, 1.0)),
        ({"weight": 0.01, "step": 0.3}, lambda f: formulas.safn(f, 0.3)),
        ({"norm": "hard", "radius": 9.0}, lambda f: formulas.hafn(f, 9.0)),
        ({"entropy": 0.1}, lambda f: formulas.safn(f, 1.0)),
    ],
)
def test_safn_lengthens_both_domains(given: dict[str, Any], each: Any) -> None:
    (f_s, f), classifier, settings = features(), head(), SAFNSettings(**given)
    wanted = settings.weight * (each(f_s) + each(f))
    if settings.entropy:
        p = torch.softmax(classifier(f), 1)
        wanted = wanted - 0.1 * (p * p.log()).sum(1).mean()
    term = SAFN(settings, TASK)(seen_by(classifier, f_s, f))
    assert_equal(term.loss, wanted)
    slopes = torch.autograd.grad(term.loss, (f_s, f))
    for mine, slope in zip(slopes, torch.autograd.grad(wanted, (f_s, f)), strict=True):
        assert_equal(mine, slope)
    assert_equal(term.logged["length_source"], f_s.detach().norm(dim=1).mean())
    assert_equal(term.logged["length_target"], f.detach().norm(dim=1).mean())
    assert ((f_s - slopes[0]).norm(dim=1) > f_s.norm(dim=1)).all()


def discrepancy(method: str, classifier: nn.Linear, f_s: Tensor, f: Tensor) -> Tensor:
    z_s, z = classifier(f_s), classifier(f)
    return formulas.daln(z_s, z) if method == "daln" else formulas.scda_pairs(z_s, LABELS, z, 10.0, 0.3)


@pytest.mark.parametrize("method", ["daln", "scda"])
def test_the_classifier_raises_the_discrepancy_and_the_features_lower_it(method: str) -> None:
    (f_s, f), classifier = features(), head()
    made = DALN(DALNSettings(), TASK) if method == "daln" else SCDA(SCDASettings(mi=0.0, threshold=0.3), TASK)
    before = discrepancy(method, classifier, f_s, f)
    loss = made(seen_by(classifier, f_s, f)).loss
    assert_equal(loss, -before if method == "daln" else -0.5 * before)  # scda's weight has grown to t
    by_s, by_f, by_w = torch.autograd.grad(loss, (f_s, f, classifier.weight))
    step = 1e-3
    moved = discrepancy(method, classifier, f_s - step * by_s, f - step * by_f)
    assert moved < before
    with torch.no_grad():
        classifier.weight -= step * by_w
    assert discrepancy(method, classifier, f_s, f) > before


@pytest.mark.parametrize("classifier", [head(), CosineHead(D, C, 0.5).double()])
@pytest.mark.parametrize("method", [DALN(DALNSettings(), TASK), SCDA(SCDASettings(mi=0.0), TASK)])
def test_at_the_first_step_the_features_have_the_cross_entropys_gradient_alone(
    method: DALN | SCDA, classifier: nn.Linear
) -> None:
    f_s, f = features()
    for slope in torch.autograd.grad(method(seen_by(classifier, f_s, f, progress=0.0)).loss, (f_s, f)):
        assert not slope.any()


def test_scdas_mutual_information_is_of_the_targets_own_logits() -> None:
    (f_s, f), classifier = features(), head()
    term = SCDA(SCDASettings(pairs=0.0), TASK)(seen_by(classifier, f_s, f))
    wanted = -0.1 * formulas.scda_mi(classifier(f))
    assert_equal(term.loss, wanted)
    assert_equal(torch.autograd.grad(term.loss, f)[0], torch.autograd.grad(wanted, f)[0])  # not reversed
    partial = dataclasses.replace(TASK, setting="pda")  # where it would ask for classes that are not there
    assert SCDA(SCDASettings(), partial).mi == 0
    assert SCDA(SCDASettings(mi=0.1), partial).mi == 0.1


@pytest.mark.parametrize("method", [DANN(DANNSettings(), TASK), SAFN(SAFNSettings(), TASK), DALN(DALNSettings(), TASK),
                                    SCDA(SCDASettings(), TASK)], ids=lambda method: type(method).__name__)  # fmt: skip
def test_half_features_are_summed_in_float32(method: nn.Module) -> None:
    classifier, f_s, f = head().float(), random(B, D).float(), random(B, D, seed=1).float()
    seen = seen_by(classifier, f_s, f)
    assert seen.source is not None
    half = dataclasses.replace(seen, features=f.half(), source=seen.source._replace(features=f_s.half()))
    assert method(half).loss.dtype == torch.float32
    torch.testing.assert_close(method(half).loss, method(seen).loss, rtol=1e-2, atol=1e-3)


def trained(config: Config, labels: str) -> dict[str, Tensor]:
    domains = load_domains(config.data)
    if labels == "permuted":
        order = np.random.default_rng(0).permutation(len(domains.target))
        target = dataclasses.replace(domains.target, labels=domains.target.labels[order])
        domains = dataclasses.replace(domains, target=target)
    engine = Engine(config, 0, domains, torch.device("cpu"))
    batches = engine.steps()
    for _ in range(3):
        engine.train_step(next(batches))
    batches.close()
    return engine.model.state_dict()


@pytest.mark.parametrize("method", ["dann", "safn", "daln", "scda"])
def test_the_targets_labels_do_nothing(method: str) -> None:
    config = tiny("run", method__name=method, train__warmup_steps=0)
    ours, other = trained(config, "true"), trained(config, "permuted")
    assert ours.keys() == other.keys()
    assert all(torch.equal(ours[name], other[name]) for name in ours)
