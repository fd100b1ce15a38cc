"""Methods without source images after the warm-up: two phases, each with a schedule of its own, and a frozen head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from fastget import methods
from fastget.config import OptimConfig
from fastget.methods import method_of
from fastget.methods.base import Method, Settings
from fastget.methods.minent import MinEnt
from fastget.training.engine import Engine
from fastget.training.optim import build_optimizer, forget_momentum
from fastget.training.passes import planned
from fastget.training.schedule import set_lr
from tests.support import engine_of

STEPS, WARM = 9, 4
BATCH = 16


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The entropy's term alone, on a target whose source is gone."""
    monkeypatch.setattr(method_of("minent"), "needs", frozenset({"target", "warm-up", "source-free"}))
    monkeypatch.setattr(method_of("minent"), "frozen", frozenset({"classifier"}))
    return engine_of(
        method__name="minent", train__max_steps=STEPS, train__warmup_steps=WARM, network__head="weight-norm"
    )


def test_two_phases(engine: Engine) -> None:
    """No source after the switch; rate, weight and progress begin again; the classifier stays to the bit."""
    source, rates, seen, frozen = [], [], [], {}
    forward = engine.model.forward
    engine.model.forward = lambda step: seen.append(step) or forward(step)  # type: ignore[func-returns-value]  # to look on
    for step in engine.steps():
        if step.number == WARM:
            frozen = {name: value.clone() for name, value in engine.network.classifier.state_dict().items()}
            moved = {name: value.clone() for name, value in engine.network.bottleneck.state_dict().items()}
        engine.train_step(step)
        source.append(step.source is not None)
        rates.append([group["lr"] for group in engine.optimizer.param_groups])
    assert source == [True] * WARM + [False] * (STEPS - WARM)
    assert [step.progress for step in seen] == [i / WARM for i in range(WARM)] + [i / 5 for i in range(5)]
    assert [step.weight for step in seen] == [step.progress for step in seen]  # minent's ramp
    factors = [(1 + 10 * step.progress) ** -0.75 for step in seen]
    assert [rate[-1] for rate in rates] == pytest.approx([0.02 * factor for factor in factors])
    assert [rate[1] for rate in rates] == [rate[-1] for rate in rates[:WARM]] + [0.0] * (STEPS - WARM)
    assert frozen
    for name, value in engine.network.classifier.state_dict().items():
        assert torch.equal(value, frozen[name]), name
    assert not all(torch.equal(value, moved[name]) for name, value in engine.network.bottleneck.state_dict().items())


def test_its_passes_are_those_that_were_planned(engine: Engine) -> None:
    for step in engine.steps():
        engine.train_step(step)
    plan = planned(engine)
    assert engine.meter.passes == {"source": 3 * BATCH * WARM, "target": 3 * BATCH * (STEPS - WARM)}
    assert plan.training == sum(engine.meter.passes.values())
    assert (plan.warm.shown, plan.adapting.shown, plan.adapting.parts) == (BATCH, BATCH, 1)
    assert plan.start == len(engine.target)


def test_the_source_is_not_opened_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a run that goes on after the switch."""
    engine.steps_done, engine.started = WARM + 1, True
    monkeypatch.setattr(engine.loaders.source, "batches", lambda start: pytest.fail("the source was read"))
    step = next(engine.steps())
    assert (step.source, step.number, step.progress) == (None, WARM + 1, 1 / 5)


def test_the_momentum_begins_again(engine: Engine) -> None:
    """What the warm-up gathered moves nothing any more: the first step is a new optimizer's."""
    steps = engine.steps()
    for _ in range(WARM):
        engine.train_step(next(steps))
    weight = engine.network.bottleneck.get_parameter("0.weight")
    before = engine.optimizer.state[weight]["momentum_buffer"].clone()
    engine.train_step(next(steps))
    assert weight.grad is not None
    decayed = engine.config.optim.weight_decay * weight.detach()
    assert before.norm() > 0
    # minent's weight is 0 at the first step of its phase: weight decay alone is left
    torch.testing.assert_close(engine.optimizer.state[weight]["momentum_buffer"], decayed, rtol=1e-4, atol=1e-7)


def test_zero_momentum_is_a_new_optimizers() -> None:
    def stepped(used: bool) -> torch.Tensor:
        parameter = nn.Parameter(torch.ones(3))
        optimizer = build_optimizer(OptimConfig(), [], [parameter], torch.device("cpu"))
        for gradient in [5.0, 0.5] if used else [0.5]:
            if gradient == 0.5:
                forget_momentum(optimizer)
                with torch.no_grad():
                    parameter.fill_(1.0)
            parameter.grad = torch.full_like(parameter, gradient)
            optimizer.step()
        return parameter.detach()

    assert torch.equal(stepped(True), stepped(False))


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_a_frozen_group_has_no_rate(scale: float) -> None:
    backbone, bottleneck, head, rest = ([nn.Parameter(torch.ones(1))] for _ in range(4))
    config, cpu = OptimConfig(bottleneck_lr_scale=scale), torch.device("cpu")
    optimizer = build_optimizer(config, backbone, [*bottleneck, *head, *rest], cpu, bottleneck, head)
    for frozen in (False, True):
        set_lr(optimizer, 0, 10, frozen=frozen)
        rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        assert [rates[id(p)] for p in (*backbone, *bottleneck, *head, *rest)] == pytest.approx(
            [0.001, 0.01 * scale, 0.0 if frozen else 0.01, 0.01]
        )
    assert optimizer.param_groups[-1]["params"][-1] is rest[0]  # the group whose rate is logged


@dataclass(frozen=True, kw_only=True)
class Apart(Settings):
    """A method that reads no source."""

    gives: ClassVar[frozenset[str]] = frozenset({"source-free"})  # type: ignore[assignment]  # its words are checked below
    runs_in: ClassVar[tuple[str, ...]] = ("uda", "pda")


def test_a_method_of_ones_own_says_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_ENTRIES", dict(methods._ENTRIES))

    class Own(MinEnt):
        Config = Apart  # type: ignore[assignment]  # another section than minent's

    assert issubclass(Own, Method)
    with pytest.raises(ValueError, match="Own: source-free is said twice or not at all"):
        methods.register("own", Own)
    Own.needs = frozenset({"target", "source-free"})
    methods.register("own", Own)
    monkeypatch.setattr(Apart, "runs_in", ("uda", "ssda"))
    with pytest.raises(ValueError, match=r"leave ssda out of Config.runs_in"):
        methods.register("own", Own)
