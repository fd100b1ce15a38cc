"""The worked example of CONTRIBUTING.md: a method in one file, registered by one line, trained end to end."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from fastget import bases, methods
from fastget.commands.main import main
from fastget.config import make_config
from fastget.methods.base import Method, Need, Seen, Settings, Task, Term, opt
from fastget.runs.checkpoint import load_checkpoint
from fastget.runs.summary import read_summary
from fastget.training.engine import Engine
from fastget.training.train import train
from tests.rooms import ROOT
from tests.support import TINY, assert_same_end, cut_back, fitting, metrics, tiny

NAME = "self-training"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file, as the documentation has it; what it registers is forgotten after the test."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- example: self_training.py -->\n```python\n(.*?)```\n", text, re.DOTALL)
    assert code is not None
    file = tmp_path / "self_training.py"
    file.write_text(code[1])
    monkeypatch.setattr(methods, "_ENTRIES", dict(methods._ENTRIES))
    loaded = set(sys.modules)
    yield file
    for name in set(sys.modules) - loaded:
        if name.startswith("fastget_methods_of"):
            del sys.modules[name]


def settings(file: Path, **more: Any) -> dict[str, Any]:
    return {"method__module": str(file), "method__name": NAME, "self-training__threshold": 0.12, **more}


def test_one_line_registers_it(example: Path) -> None:
    tree = ast.parse(example.read_text())
    assert [ast.unparse(node) for node in tree.body if isinstance(node, ast.Expr)][1:] == [
        "methods.register('self-training', SelfTraining)"
    ]


def test_its_section_has_help_and_ranges(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"method\.name must be one of get, .* got 'self-training'"):
        make_config({"method.name": NAME})
    config = make_config({"method.module": str(example), "method.name": NAME})
    assert config.own.threshold == 0.5
    assert config.to_dict()[NAME] == {"threshold": 0.5, "step": 0.1}
    with pytest.raises(ValueError, match=r"self-training.threshold must be at least 0 and at most 1, got 2.0"):
        make_config({"method.module": str(example), "self-training.threshold": "2"})
    with pytest.raises(ValueError, match=r"did you mean 'self-training\.threshold'"):
        make_config({"method.module": str(example), "self-training.treshold": "0.2"})
    with pytest.raises(SystemExit):
        main(["train", "--set", f"method.module={example}", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "self-training.threshold [0.5] least confidence of a label that is trained on (a number)" in shown


def test_it_trains_and_its_run_says_so(example: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = train(tiny("run", **settings(example, train__tensorboard=True)), quiet=True).folder
    logged = metrics(folder)[-2]
    assert {"loss_source", "loss_target", "sure"} <= set(logged)
    assert logged["sure"] > 0
    summary = read_summary(folder)
    assert summary is not None
    assert summary.method == NAME
    assert summary.accuracy is not None
    shares = load_checkpoint(folder / "checkpoints" / "final.pt")["model"]["method.shares"]
    assert float(shares.sum()) == pytest.approx(1, abs=1e-5)
    assert float(shares.max() - shares.min()) > 1e-3  # it has moved
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert f"{NAME}/total variation from the labels (oracle)" in events.Tags()["scalars"]
    assert f"{NAME}/against the labels (oracle)" in events.Tags()["images"]


def test_it_goes_on_to_the_bit(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings(example, train__checkpoint_every=4)
    whole = train(tiny("whole", **given), quiet=True).folder
    step = Engine.train_step

    def stop(self: Engine, *given: Any) -> None:
        if self.steps_done == 6:
            raise KeyboardInterrupt
        step(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "train_step", stop)
        with pytest.raises(KeyboardInterrupt):
            train(tiny("part", **given), quiet=True)
    part = train(tiny("part", **given, train__resume="auto"), quiet=True).folder
    assert_same_end(part, whole)


def test_two_ranks_follow_one(example: Path, tmp_path: Path) -> None:
    """By its command: the first steps, in which rounding has not grown, agree to five digits."""
    values = {**TINY, "train.log_every": 1, "train.warmup_steps": 0, "method.module": str(example)}
    values |= {"method.name": NAME, "self-training.threshold": 0.12}
    pairs = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]
    for name, launcher in (
        ("one", [sys.executable, "-m", "fastget"]),
        ("two", [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "fastget"]),
    ):
        command = [*launcher, "train", "--out", str(tmp_path / name), "--set", *pairs]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
    one, two = ([line for line in metrics(tmp_path / name) if "loss" in line] for name in ("one", "two"))
    for a, b in list(zip(one, two, strict=True))[:4]:
        for name in ("loss", "loss_source", "loss_target", "sure"):
            assert b[name] == pytest.approx(a[name], rel=1e-5), (a["step"], name)


def test_a_skipped_step_leaves_its_memory_whatever_it_saw(example: Path) -> None:
    make_config({"method.module": str(example)})
    method = methods.method_of(NAME)(methods.settings_of(NAME)(), Task(3, 2, 10))
    seen = Seen(torch.zeros(2, 2), torch.full((2, 3), torch.inf), torch.arange(2), torch.nn.Linear(2, 3), 0.0)
    method.after_step(seen, method(seen), torch.tensor(1.0), lambda: seen)
    assert method.state_dict()["shares"].tolist() == pytest.approx([1 / 3] * 3)


def test_its_file_may_be_named_and_lie_otherwise_when_the_run_goes_on(example: Path, tmp_path: Path) -> None:
    """Stored in full, free to differ, and never run from a folder's own word."""
    os.chdir(tmp_path)
    given = settings(Path("self_training.py"), train__checkpoint_every=4)
    run = train(tiny("run", **given), quiet=True).folder.resolve()
    stored = (run / "config.yaml").read_text()
    assert f"module: {example}" in stored
    whole = metrics(cut_back(run, 8))
    (tmp_path / "elsewhere").mkdir()
    moved = example.rename(tmp_path / "elsewhere" / "mine.py")
    os.chdir(tmp_path / "elsewhere")
    train(tiny(run, **{**given, "method__module": "mine.py"}, train__resume="auto"), quiet=True)
    assert metrics(run) == whole
    config = make_config({"method.module": str(moved), "train.out": str(run), "train.resume": "auto"},
                         file=run / "config.yaml")  # fmt: skip
    assert train(config, quiet=True).summary.method == NAME  # a finished one, by its own config.yaml


# --- what register() refuses ---------------------------------------------------------------------


class Good(Method):
    Config = methods.settings.SourceOnlySettings

    def forward(self, seen: Seen) -> Term:
        return Term(seen.logits.sum())


class WithoutForward(Method):
    Config = methods.settings.SourceOnlySettings


@dataclass(kw_only=True)
class Thawed(methods.settings.Settings):
    """Not frozen."""


class Lost(methods.settings.MCCSettings):
    """Not a dataclass of its own: `more` would be lost."""

    more: int = 3


@dataclass(frozen=True, kw_only=True)
class Odd(methods.settings.Settings):
    """A field of no type that people can write."""

    table: dict[str, int] = opt(None, "a table")


@dataclass(frozen=True, kw_only=True)
class Bare(methods.settings.Settings):
    """A field without a meaning."""

    more: int = 3


@dataclass(frozen=True, kw_only=True)
class Preset(methods.settings.Settings):
    """A preset of a field that is not there."""

    presets = {"default": {"taau": 1}}  # noqa: RUF012  # wrong in more than one way


def having(config: type) -> type[Method]:
    return type("Having", (Good,), {"Config": config})


class WithoutConfig(Method):
    def forward(self, seen: Seen) -> Term:
        return Term(seen.logits.sum())


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("x", dict, "takes a subclass of fastget.methods.base.Method"),
        ("x", WithoutForward, r"WithoutForward has no forward\(seen\)"),
        ("x", WithoutConfig, "WithoutConfig.Config must be a frozen dataclass"),
        ("x", having(Thawed), "must be a dataclass of its own"),
        ("x", having(Lost), "must be a dataclass of its own"),
        ("x", having(Odd), "table is a dict"),
        ("x", having(Bare), "more has no meaning"),
        ("x", having(Preset), "default sets .'taau'."),
        ("get", Good, "the name 'get' is taken"),
        ("train", Good, "the name 'train' is taken"),
        ("My method", Good, "small letters"),
    ],
)
def test_what_cannot_be_registered(name: str, method: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_ENTRIES", dict(methods._ENTRIES))
    with pytest.raises(ValueError, match=message):
        methods.register(name, method)
    methods.register("good", Good)
    methods.register("good", Good)  # again is fine: its file may be loaded twice
    assert methods.method_of("good") is Good


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss: loss, r"Mine\.forward returned a Tensor; expected a Term"),
        (lambda loss: Term(loss, {"loss": loss.detach()}), "Mine logs 'loss', which is a name of the run's own"),
    ],
)
def test_what_forward_may_not_return(returned: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Method):
        Config = methods.settings.MCCSettings

        def forward(self, seen: Seen) -> Any:
            return returned(seen.logits.sum())

    monkeypatch.setattr(methods, "_ENTRIES", dict(methods._ENTRIES))
    methods.register("mine", Mine)
    with pytest.raises(ValueError, match=message):
        train(tiny("run", method__name="mine", train__max_steps=2, train__warmup_steps=0), quiet=True)


def test_modules_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"method\.module: no module 'no_such_module'"):
        make_config({"method.module": "no_such_module"})
    (tmp_path / "lacking_methods.py").write_text("import lacking")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'lacking'"):  # not the module, what it imports
        make_config({"method.module": "lacking_methods"})
    with pytest.raises(ValueError, match=r"method.module: no file .*none.py"):
        make_config({"method.module": str(tmp_path / "none.py")})


def test_the_registry_reserves_the_other_sections() -> None:
    from fastget.config.config import FIXED

    assert set(methods._TAKEN) == {*FIXED, *bases.names()}


@pytest.mark.parametrize("name", methods.names())
def test_every_method_declares_what_it_is(name: str) -> None:
    cls = methods.method_of(name)
    assert cls.Config is methods.settings_of(name)
    assert issubclass(cls.Config, Settings)
    assert cls.needs <= set(get_args(Need))
    for part in ("own step", "source-free"):
        assert (part in cls.needs) == (part in cls.Config.gives)
    assert (cls.labels is not Method.labels) == ("labels" in cls.Config.gives)
    assert "default" in cls.Config.presets
    for recipe in cls.Config.presets:
        given = {key.replace("__", "."): value for key, value in fitting(name).items()}
        config = make_config(given, recipe=recipe)
        assert (config.method.name, config.method.recipe) == (name, recipe)
