"""Steps made static, run without a graph: the bits of the ordinary loop, fixed buffers, no number of Python's baked in.

What a CUDA graph itself does with such a step is shown by `fastget selftest` on a GPU, and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fastget import bases, methods
from fastget.bases.base import Step
from fastget.common import proven
from fastget.common.ranks import Ranks
from fastget.methods.base import Task
from fastget.methods.get.method import GetMethod
from fastget.networks.network import build_network
from fastget.training import engine as engine_module
from fastget.training.engine import Engine
from fastget.training.graph import EAGER, Parts, StaticSteps, graph_of, why_not
from fastget.training.optim import fill_momentum
from fastget.training.train import train
from tests.fake_cuda import Waits, autocast_on_fake_cuda, to_fake_cuda
from tests.support import batch, cut_back, engine_of, metrics, tiny

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
CAPTURABLE = [name for name in methods.names() if methods.method_of(name).capturable]


class Replays:
    """In place of a capture: the function itself, whose calls are counted."""

    def __init__(self) -> None:
        self.captures, self.calls = 0, 0

    def __call__(self, step: Callable[[], Parts]) -> Callable[[], Parts]:
        self.captures += 1

        def replay() -> Parts:
            self.calls += 1
            return step()

        return replay


def static(engine: Engine) -> Replays:
    """The engine on static steps."""
    replays = Replays()
    engine.graph = StaticSteps(engine.learn, engine.optimizer, CPU, engine.meter, replays)
    fill_momentum(engine.optimizer)
    return replays


def run(engine: Engine, count: int) -> list[dict[str, float]]:
    """So many steps; what is logged of each."""
    batches, found = engine.steps(), []
    for _ in range(count):
        engine.train_step(next(batches))
        found.append(engine.read_means())
    batches.close()
    return found


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def test_capturable_methods_are_these() -> None:
    assert set(CAPTURABLE) == {"get", "source-only", "minent", "mcc", "pl", "safn", "alpha-power"}
    assert [name for name in bases.names() if bases.base_of(name).capturable] == ["plain"]


@pytest.mark.parametrize("name", CAPTURABLE)
def test_static_steps_have_the_bits_of_the_ordinary_ones(name: str) -> None:
    """Through warm-up and the method's start, with a w(t) that grows; image passes are counted as before."""
    settings = {"method__name": name, "method__ramp": "linear", "train__max_steps": 14, "train__warmup_steps": 5}
    plain, fixed = engine_of(**settings), engine_of(**settings)
    replays = static(fixed)
    assert run(plain, 14) == run(fixed, 14)
    equal(plain.model.state_dict(), fixed.model.state_dict())
    kinds = 1 if name == "source-only" else 2  # the warm-up's, and the method's: a capture each
    assert (replays.captures, replays.calls) == (kinds, 14 - kinds * EAGER)
    assert plain.meter.read().passes == fixed.meter.read().passes
    assert [g["lr"] for g in plain.optimizer.param_groups] == [g["lr"] for g in fixed.optimizer.param_groups]


def test_ssda_steps_are_static_too() -> None:
    settings = {"data__setting": "ssda", "train__max_steps": 10, "train__warmup_steps": 2}
    plain, fixed = engine_of(**settings), engine_of(**settings)
    static(fixed)
    assert run(plain, 9) == run(fixed, 9)


def test_a_run_is_the_same_with_logs_evaluations_epochs_and_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """metrics.jsonl to the digit; and from a checkpoint in its middle, with other captures than the first."""
    settings: dict[str, Any] = {"train__max_steps": 12, "train__checkpoint_every": 6, "data__limit": 48}  # 3 an epoch
    train(tiny(tmp_path / "plain", **settings), quiet=True)
    made: list[Replays] = []

    def graph(*given: Any) -> StaticSteps:
        *_, learn, meter, optimizer = given
        made.append(Replays())
        return StaticSteps(learn, optimizer, CPU, meter, made[-1])

    monkeypatch.setattr(engine_module, "graph_of", graph)
    fixed = tmp_path / "fixed"
    train(tiny(fixed, **settings), quiet=True)
    assert metrics(tmp_path / "plain") == metrics(fixed)
    assert made[0].calls > 0
    train(tiny(cut_back(fixed, 6), train__resume="auto", **settings), quiet=True)
    assert metrics(tmp_path / "plain") == metrics(fixed)
    assert len(made) == 2


def test_every_step_reads_the_same_buffers_and_no_number_of_pythons() -> None:
    ramp = {"method__ramp": "linear", "get__backend": "reference"}  # the CPU's own path looks at values, for speed
    engine = engine_of(train__max_steps=14, train__warmup_steps=2, **ramp)
    static(engine)
    seen: list[Step] = []
    learn = engine.graph._learn  # type: ignore[union-attr]

    def noted(step: Step) -> Parts:
        seen.append(step)
        assert all(isinstance(group["lr"], Tensor) for group in engine.optimizer.param_groups)
        with Waits() as waits:
            parts = learn(step)
        assert waits.seen == []
        return parts

    engine.graph._learn = noted  # type: ignore[union-attr]
    run(engine, 12)
    adapting = [step for step in seen if step.adapting]
    for name in ("source.images", "source.labels", "target.images", "target.place", "weight", "progress"):
        assert len({attrgetter(name)(step).data_ptr() for step in adapting}) == 1, name
    momentum = [state["momentum_buffer"].data_ptr() for state in engine.optimizer.state.values()]
    run(engine, 1)
    assert momentum == [state["momentum_buffer"].data_ptr() for state in engine.optimizer.state.values()]


def test_weight_and_rates_are_read_from_the_device() -> None:
    """The captured function with other scalars under it: another step. Nothing is baked in."""
    engine = engine_of(train__max_steps=14, train__warmup_steps=0)
    static(engine)
    run(engine, EAGER + 1)
    graph = engine.graph
    assert graph is not None
    (kind,) = graph._kinds.values()
    assert kind.replay is not None
    before = {name: value.clone() for name, value in engine.model.state_dict().items()}
    found = []
    for rate, weight in ((0.0, 1.0), (0.0, 0.5)):
        engine.model.load_state_dict(before)
        for scalar in graph.rates:
            scalar.fill_(rate)
        graph.weight.fill_(weight)
        found.append(kind.replay()[0])
        after = dict(engine.network.named_parameters())
        assert all(torch.equal(value, before[f"network.{name}"]) for name, value in after.items())  # a rate of 0
    (one, half) = found
    expected = one["loss_source"] + 0.5 * one["loss_target"]
    assert torch.allclose(half["loss"], expected)
    assert not torch.allclose(half["loss"], one["loss"])


@pytest.mark.parametrize("name", CAPTURABLE)
def test_the_static_forward_pass_on_fake_cuda_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """w(t) and progress on the device: a number read back raises there."""
    autocast_on_fake_cuda(monkeypatch)
    given = {"get__backend": "reference"} if name == "get" else {}
    sizes = {"network__name": "resnet18", "network__weights": "none", "data__resize": 64, "data__crop": 64}
    config = tiny("fake", method__name=name, **sizes, **given)
    method = methods.method_of(name)(config.own, Task(10, 256, 100))
    if isinstance(method, GetMethod):
        method.get._ready = True  # looked at in the steps before a capture
    model = bases.base_of("plain")(build_network(config.network, 10, 64), method, 0.1, config=config.base)
    with FakeTensorMode(allow_non_fake_inputs=False):
        to_fake_cuda(model)
        images = torch.empty(4, 64, 64, 3, device="cuda").permute(0, 3, 1, 2)
        labels = torch.zeros(4, dtype=torch.int64, device="cuda")
        weight, progress = (torch.zeros((), device="cuda") for _ in range(2))
        with Waits() as waits, torch.autocast("cuda", torch.bfloat16):
            losses = model(Step(batch(images, labels), batch(images, labels), weight=weight, progress=progress))
            method.after_step(losses.seen, losses.term, None, lambda: losses.seen)
        assert waits.seen == []
        assert losses.loss.device.type == "cuda"


def reason(dtype: torch.dtype = torch.bfloat16, device: torch.device = CUDA, world: int = 1, **settings: Any) -> str:
    config = tiny("run", **settings)
    method = methods.method_of(config.method.name)(config.own, Task(10, 16, 100))
    model = bases.base_of(config.method.base).__new__(bases.base_of(config.method.base))
    torch.nn.Module.__init__(model)
    model.method = method
    return why_not(config, device, dtype, Ranks(0, world), model)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("need a GPU", {"device": CPU}),
        ("loss scaler", {"dtype": torch.float16}),
        ("2 ranks", {"world": 2}),
        ("method.base=mixmatch", {"method__base": "mixmatch"}),
        ("method.base=cdan", {"method__base": "cdan"}),
        ("method.name=bnm", {"method__name": "bnm"}),
        ("train.compile", {"train__compile": True}),
        ("--profile", {"train__profile": True}),
        ("optim.impl=plain", {"optim__impl": "plain"}),
    ],
)
def test_what_cannot_be_captured_is_said(words: str, given: dict[str, Any]) -> None:
    assert words in reason(**given)
    assert reason() == ""


def test_off_auto_and_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_of().graph is None
    assert engine_of(train__graph="auto").graph is None  # no GPU: the ordinary step
    with pytest.raises(ValueError, match=r"train.graph=on: CUDA graphs need a GPU.*train.graph=off"):
        engine_of(train__graph="on")
    engine = engine_of()
    given = (engine.dtype, engine.ranks, engine.model, engine.learn, engine.meter, engine.optimizer)
    monkeypatch.setattr("fastget.training.graph.why_not", lambda *args: "")
    config = tiny("run", train__graph="auto")
    assert graph_of(config, CPU, *given) is None  # not shown on this card
    monkeypatch.setattr("fastget.training.graph.is_proven", lambda what, device: what == "graph")
    assert isinstance(graph_of(config, CPU, *given), StaticSteps)


def test_what_was_shown_holds_for_this_card_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = ["A100 | driver 1"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(proven, "card", lambda device: cards[-1])
    assert not proven.is_proven("graph", CUDA)
    proven.keep({"graph": True}, CUDA)
    assert proven.is_proven("graph", CUDA)
    assert not proven.is_proven("graph", CPU)
    cards.append("A100 | driver 2")
    assert not proven.is_proven("graph", CUDA)
    proven.keep({"graph": True}, CUDA)
    assert set(json.loads(proven.file().read_text())) == set(cards)
    cards.pop()
    proven.keep({"graph": False}, CUDA)
    assert not proven.is_proven("graph", CUDA)
    proven.file().write_text("{")
    assert not proven.is_proven("graph", CUDA)
    proven.file().unlink()
