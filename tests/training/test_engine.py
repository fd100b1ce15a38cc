"""The step, counted: image passes, waits for the device, collectives; the float16 scaler; precision; resuming."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget import bases, methods
from fastget.common.precision import choose_precision, cpu_has_bfloat16
from fastget.config import OptimConfig
from fastget.methods.atdoc_na import AtdocNA
from fastget.methods.base import Seen
from fastget.methods.get.method import GetMethod
from fastget.runs.checkpoint import load_checkpoint
from fastget.selftest.engine import steps
from fastget.training.engine import Engine
from fastget.training.optim import build_optimizer, choose_impl, fill_momentum
from fastget.training.resume import load_state, state_of
from fastget.training.train import train
from tests.fake_cuda import Waits, autocast_on_fake_cuda, to_fake_cuda
from tests.support import PAIRS, assert_same_end, batch, cut_back, engine_of, fitting, metrics, tiny

CPU = torch.device("cpu")


@contextlib.contextmanager
def stepping(engine: Engine, until: int) -> Iterator[Any]:
    """The engine's steps to come, after training up to one."""
    coming = engine.steps()
    while engine.steps_done < until:
        engine.train_step(next(coming))
    yield coming
    coming.close()


ADAPTING = [pair for pair in PAIRS if "target" in methods.method_of(pair[0]).needs]
APART: dict[str, dict[str, Any]] = {"shot": {"shot__intervals": 1}}  # its look at the target is no part of a step
PASSES = {"plain": [16, 16], "cdan": [16, 16], "mixmatch": [16, 16, 48]}  # source, target; MixMatch: views, all mixed


@pytest.mark.parametrize(("method", "base"), PAIRS)
def test_image_passes_of_a_step_that_never_waits_for_the_device(method: str, base: str) -> None:
    """Source once, target once, nothing else; an SSDA batch of 16 is 11 unlabelled and 5 labelled images."""
    engine = engine_of(**fitting(method, base), **APART.get(method, {}))
    forwards: list[int] = []
    engine.network.backbone.register_forward_hook(lambda m, i, o: forwards.append(len(i[0])))
    with stepping(engine, 6) as coming:
        forwards.clear()
        step = next(coming)
        with Waits() as waits:
            engine.train_step(step)
    alone = (method == "source-only" and base == "plain") or "source-free" in engine.method.needs
    assert forwards == ([16] if alone else [16, 5, 11] if method == "mme" else PASSES[base])
    assert waits.seen == []
    with Waits() as waits:
        engine.read_means()
    assert waits.seen  # the trap can spring


def test_a_second_look_is_one_more_pass_of_the_target() -> None:
    engine = engine_of(**{"method__name": "atdoc-na", "atdoc-na__second_look": True})
    forwards: list[tuple[int, bool]] = []
    engine.network.backbone.register_forward_hook(lambda m, i, o: forwards.append((len(i[0]), m.training)))
    with stepping(engine, 6) as coming:
        forwards.clear()
        engine.train_step(next(coming))
    assert forwards == [(16, True), (16, True), (16, False)]


@pytest.mark.parametrize(("method", "base"), [pair for pair in PAIRS if pair[0] in ("atdoc-na", "get", "mme")])
def test_ssda_shows_a_method_every_unlabelled_image(method: str, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ATDOC's public code drops half of them, and masks the wrong half in the memory."""
    engine = engine_of(**{**fitting(method, base), "data__setting": "ssda"})
    shown: list[list[int]] = []
    after_step = type(engine.method).after_step

    def watched(self: Any, seen: Any, *rest: Any) -> Any:
        shown.append(seen.index.tolist())
        assert len(seen.features) == len(seen.logits) == len(seen.index)
        return after_step(self, seen, *rest)

    monkeypatch.setattr(type(engine.method), "after_step", watched)
    with stepping(engine, 4) as coming:
        given = []
        for _ in range(3):
            step = next(coming)
            given.append(step.target.index.tolist())
            engine.train_step(step)
    assert shown == given
    assert {len(rows) for rows in shown} == {11}  # of a batch of 16, a third has labels


COSTS: dict[tuple[str, str, bool], dict[str, float]] = {  # 16 images of each domain; learned from, an image counts as 3
    ("source-only", "plain", False): {"source": 48},
    ("get", "plain", False): {"source": 48, "target": 48},
    ("atdoc-na", "plain", True): {"source": 48, "target": 48, "second look": 16},  # a seventh
    ("atdoc-nc", "mixmatch", True): {"guess": 32, "mixed": 144, "second look": 32},
    ("source-only", "cdan", False): {"source": 48, "target": 48},
}


@pytest.mark.parametrize(("method", "base", "second"), COSTS)
def test_what_a_step_costs(method: str, base: str, second: bool) -> None:
    engine = engine_of(**fitting(method, base), **({f"{method}__second_look": True} if second else {}))
    with stepping(engine, 6) as coming:
        engine.meter.read()
        engine.train_step(next(coming))
        engine.train_step(next(coming))
        cost = engine.meter.read()
    assert cost.passes == COSTS[method, base, second]
    assert (cost.method_ms > 0) == (method != "source-only")
    if second and base == "plain":
        assert cost.words() == "112 image passes a step (source 43 %, target 43 %, second look 14 %)"
    assert engine.meter.read().passes == {}  # what was read is not counted again


def test_a_memory_in_float16_is_written_and_read_without_a_wait() -> None:
    engine = engine_of(**{"method__name": "atdoc-na", "atdoc-na__store": "float16", "train__precision": "float16"})
    method = engine.method
    assert isinstance(method, AtdocNA)
    with stepping(engine, 6) as coming:
        step = next(coming)
        seen = Seen(torch.ones(2, 256), torch.ones(2, 10), torch.arange(2), engine.network.classifier, 0.5)
        before = method.memory_f.clone()
        with Waits() as waits:
            method.after_step(seen, method(seen), torch.zeros(()), lambda: seen)
        assert waits.seen == []
        assert not torch.equal(method.memory_f, before)
        engine.train_step(step)
    assert method.memory_f.dtype == torch.float16
    assert engine.finite()
    method.memory_q[0, 0] = torch.nan
    assert not engine.finite()


def test_one_collective_beside_ddps_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    engine = engine_of()
    monkeypatch.setattr("fastget.methods.get.module.world_size", lambda group: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda t, group=None: calls.append(t.numel()))
    with stepping(engine, 6) as coming:
        calls.clear()
        engine.train_step(next(coming))
    C, D = 10, 256
    assert calls == [3 * C + 2 + C + C * D]  # column sums, prior, rows, counts and class sums in one buffer


@pytest.mark.parametrize(("method", "base"), ADAPTING)
def test_float16_overflow_skips_the_step_and_the_memory(method: str, base: str) -> None:
    engine = engine_of(**fitting(method, base), **APART.get(method, {}), train__precision="float16")
    with stepping(engine, 6) as coming:
        before = {name: value.clone() for name, value in engine.model.state_dict().items()}
        scale = engine.scaler.get_scale()
        handles = [engine.network.classifier.weight.register_hook(lambda grad: grad * torch.inf)]
        handles.append(engine.network.register_forward_hook(lambda m, i, o: (o[0], o[1] * torch.inf)))  # and before it
        engine.train_step(next(coming))
        for handle in handles:
            handle.remove()
        after = engine.model.state_dict()
        assert engine.scaler.get_scale() < scale
        for name, value in before.items():
            if not name.endswith(("health", "drawn")) and "running" not in name and "tracked" not in name:
                assert torch.equal(value, after[name]), name
        engine.train_step(next(coming))  # and the next step goes on
        moved = [name for name, value in engine.model.state_dict().items() if not torch.equal(value, before[name])]
        assert "network.bottleneck.0.weight" in moved
        kept = method not in APART and any(name.startswith("method.") for name in before)
        assert any(name.startswith("method.") for name in moved) == kept


def test_a_first_step_that_overflows_leaves_no_trace() -> None:
    """torch's fused SGD would go on with a momentum that nobody filled."""
    parameter = torch.nn.Parameter(torch.ones(1000))
    optimizer = build_optimizer(OptimConfig(impl="fused"), [], [parameter], CPU)
    fill_momentum(optimizer)
    scaler = torch.amp.GradScaler("cpu")
    for factor in (torch.inf, 1.0):
        junk = [torch.full((1000,), torch.nan) for _ in range(50)]  # what an unfilled tensor would be made of
        del junk
        optimizer.zero_grad()
        scaler.scale(factor * parameter.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    plain = torch.nn.Parameter(torch.ones(1000))
    optimizer = build_optimizer(OptimConfig(impl="plain"), [], [plain], CPU)
    plain.sum().backward()
    optimizer.step()
    torch.testing.assert_close(parameter, plain)


def test_float16_and_bfloat16_follow_float32() -> None:
    plain = metrics(train(tiny("f32"), quiet=True).folder)
    for name in ("float16", "bfloat16"):
        low = metrics(train(tiny(name, train__precision=name, train__force_precision=True), quiet=True).folder)
        assert low[0]["loss"] == pytest.approx(plain[0]["loss"], rel=0.02)
        assert low != plain


def test_precision_is_chosen_by_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_precision("auto", CPU) == torch.float32
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choose_precision("auto", torch.device("cuda")) == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_precision("auto", torch.device("cuda")) == torch.float16
    with pytest.raises(ValueError, match=r"compute capability 8\.0"):
        choose_precision("bfloat16", torch.device("cuda"))
    (tmp_path / "old").write_text("flags : avx2 avx512f\n")
    (tmp_path / "new").write_text("flags : avx2 avx512_bf16\n")
    assert not cpu_has_bfloat16(tmp_path / "old")
    assert cpu_has_bfloat16(tmp_path / "new")
    assert not cpu_has_bfloat16(tmp_path / "none")
    monkeypatch.setattr("fastget.common.precision.cpu_has_bfloat16", lambda: False)
    with pytest.raises(ValueError, match=r"slower than float32.*force_precision"):
        choose_precision("bfloat16", CPU)
    assert choose_precision("bfloat16", CPU, force=True) == torch.bfloat16


def in_float64(engine: Engine) -> Engine:
    """The same engine where the order of a sum does not show: in float32 a trajectory depends on the CPU."""
    engine.model.double()
    engine.network.register_forward_pre_hook(lambda module, images: (images[0].double(),))
    return engine


def test_optimizer_implementations_give_the_same_trajectory() -> None:
    fused, plain = (steps(in_float64(engine_of(optim__impl=impl)), 12) for impl in ("fused", "plain"))
    assert fused == pytest.approx(plain, rel=1e-9)
    assert steps(in_float64(engine_of(optim__weight_decay=2e-3)), 12) != pytest.approx(plain, rel=1e-6)  # it would show


def test_apex_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_impl("auto", CPU) == "fused"
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)  # whether this machine has it or not
        with pytest.raises(ValueError, match="it is not installed"):
            choose_impl("apex", CPU)
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="unrelated package"):
        choose_impl("apex", CPU)
    (tmp_path / "apex" / "optimizers").mkdir()
    (tmp_path / "apex" / "optimizers" / "fused_sgd.py").write_text("")
    assert choose_impl("apex", torch.device("cuda")) == "apex"
    with pytest.raises(ValueError, match="CUDA devices only"):
        choose_impl("apex", CPU)


@pytest.mark.inductor
@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
def test_compile_follows_eager() -> None:
    eager, compiled = (metrics(train(tiny(f"c{c}", train__compile=c), quiet=True).folder) for c in (False, True))
    assert compiled[0]["loss"] == pytest.approx(eager[0]["loss"], rel=1e-4)  # of the warm-up: no argmax, little drift


# --- going on from a checkpoint -----------------------------------------------------------------


def test_another_runs_checkpoint_is_refused() -> None:
    state = state_of(engine_of())
    for settings, message in (
        ({"network__bottleneck_dim": 64}, r"other settings: network\.bottleneck_dim \(256 there, 64 here\)"),
        ({"get__tau": 0.5}, "get.tau"),
    ):
        with pytest.raises(ValueError, match=message):
            load_state(engine_of(**settings), state)
    with pytest.raises(ValueError, match="another data set: it knows 2 classes"):
        load_state(engine_of(), {**state, "classes": ["a", "b"]})
    with pytest.raises(ValueError, match=r"train\.seeds"):
        load_state(engine_of(train__seeds="7"), state)
    with pytest.raises(ValueError, match="lacks 'optimizer'"):
        load_state(engine_of(), {key: value for key, value in state.items() if key != "optimizer"})
    with pytest.raises(ValueError, match="another network"):
        load_state(engine_of(), {**state, "model": state_of(engine_of(network__bottleneck_dim=64))["model"]})
    load_state(engine_of(train__log_every=1), state)  # what the trajectory does not depend on may differ


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(capsys: pytest.CaptureFixture[str]) -> None:
    whole = train(tiny("a", train__checkpoint_every=3), quiet=True).folder
    damaged = Path(shutil.copytree(whole, "b"))
    cut_back(damaged, 12)
    last = damaged / "checkpoints" / "step_00000012.pt"
    last.write_bytes(last.read_bytes()[:5000])
    train(tiny("b", train__checkpoint_every=3, train__resume="auto"))
    shown = " ".join(capsys.readouterr().out.split())
    assert "step_00000012.pt is damaged" in shown
    assert "going on from step 9" in shown
    assert_same_end(damaged, whole)


def test_a_full_disk_loses_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import fastget.runs.checkpoint as module
    from fastget.common.files import write_atomically as write

    calls = 0

    def full_once(file: Path, content: bytes) -> None:
        nonlocal calls
        calls += file.suffix == ".pt"
        if calls == 2 and file.suffix == ".pt":
            raise OSError(28, "No space left on device")
        write(file, content)

    monkeypatch.setattr(module, "write_atomically", full_once)
    folder = train(tiny("full", train__checkpoint_every=3)).folder
    assert "No space left on device" in " ".join(capsys.readouterr().out.split())
    assert load_checkpoint(folder / "checkpoints" / "final.pt")["step"] == 12


# --- selection, profile, tensorboard ------------------------------------------------------------


def test_selection_needs_no_labels_and_stands_beside_the_final_model() -> None:
    folder = train(tiny("sel", train__select="entropy"), quiet=True).folder
    lines = [line for line in metrics(folder) if "entropy" in line]
    best = min(lines, key=lambda line: line["entropy"])
    state = load_checkpoint(folder / "checkpoints" / "selected.pt")
    assert state["step"] == best["step"]
    assert state["selected_by"] == {"entropy": best["entropy"]}
    assert load_checkpoint(folder / "checkpoints" / "final.pt")["step"] == 12


def test_profile(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"method__name": "atdoc-na", "atdoc-na__second_look": True, "train__warmup_steps": 0}
    folder = train(tiny("prof", train__profile=True, train__max_steps=20, **given)).folder
    text = capsys.readouterr().out
    for name in ("data", "forward", "method", "backward", "optimizer", "memory", "second look", "evaluation"):
        assert name in text
    assert re.search(r"second look +│ +16.0 +│ +14.3 %", text)  # its share of the image passes
    kept = 1797 * (256 + 10) * 4 / 2**20
    assert f"{kept:.1f} MiB of state" in text
    assert "traceEvents" in (folder / "trace.json").read_text()


def test_tensorboard_events() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = train(tiny("tb", train__tensorboard=True), quiet=True).folder
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    for tag in ("loss/loss", "run/images_per_second", "target (oracle)/accuracy", "target (label-free)/entropy",
                "prior/total variation from the labels (oracle)", "prototypes/mean drift (1 - cosine)"):  # fmt: skip
        assert tag in tags["scalars"], tag
    assert "images/target" in tags["images"]
    assert "prior/against the labels (oracle)" in tags["images"]


# --- the GPU path, without a GPU ----------------------------------------------------------------


@pytest.mark.parametrize(("method_name", "base"), ADAPTING)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_forward_pass_on_fake_cuda_tensors(
    method_name: str, base: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """autocast, channels_last and devices of the GPU path: mixed devices and hidden waits raise on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from fastget.bases.base import Step
    from fastget.methods.base import Task
    from fastget.networks.network import build_network

    autocast_on_fake_cuda(monkeypatch)
    given = {"get__backend": "reference"} if method_name == "get" else {}
    sizes = {"network__name": "resnet18", "network__weights": "none", "data__resize": 64, "data__crop": 64}
    config = tiny("fake", **fitting(method_name, base), **sizes, **given)
    network = build_network(config.network, 10, 64)
    method = methods.method_of(method_name)(config.own, Task(10, 256, 100))
    if isinstance(method, GetMethod):
        method.get._ready = True  # a look at mu would wait
    model = bases.base_of(base)(network, method, 0.1, config=config.base)
    with FakeTensorMode(allow_non_fake_inputs=False):
        to_fake_cuda(model)
        images = torch.empty(4, 64, 64, 3, device="cuda").permute(0, 3, 1, 2)
        labels = torch.zeros(4, dtype=torch.int64, device="cuda")
        with torch.autocast("cuda", dtype):
            losses = model(Step(batch(images, labels), batch(images, second=images)))
        method.after_step(losses.seen, losses.term, torch.zeros((), device="cuda"), lambda: losses.seen)
        assert losses.seen.features.dtype == dtype
        assert losses.loss.dtype == torch.float32
        assert losses.loss.device.type == "cuda"
        with pytest.raises(Exception, match="device"):
            model(Step(batch(images.to("cpu"), labels), batch(images, second=images)))  # the check can fail
