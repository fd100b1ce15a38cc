"""The worked example of CONTRIBUTING.md: a method in one file, registered by one line, trained end to end."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget import methods
from fastget.commands.main import main
from fastget.config import make_config
from fastget.methods.base import Method, Seen, Settings, Term
from fastget.runs.checkpoint import load_checkpoint
from fastget.runs.summary import read_summary
from fastget.training.engine import Engine
from fastget.training.train import train
from tests.rooms import ROOT
from tests.support import TINY, metrics, tiny

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
        main(["train", "--help"])
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

    def stop(self: Engine, batches: Any) -> None:
        if self.step == 6:
            raise KeyboardInterrupt
        step(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "train_step", stop)
        with pytest.raises(KeyboardInterrupt):
            train(tiny("part", **given), quiet=True)
    part = train(tiny("part", **given, train__resume="auto"), quiet=True).folder
    assert metrics(part) == metrics(whole)
    a, b = (load_checkpoint(folder / "checkpoints" / "final.pt")["model"] for folder in (whole, part))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


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


# --- what register() refuses ---------------------------------------------------------------------


class Good(Method):
    Config = methods.settings.SourceOnly

    def forward(self, seen: Seen) -> Term:
        return Term(seen.logits.sum())


class WithoutForward(Method):
    Config = methods.settings.SourceOnly


class WithoutConfig(Method):
    def forward(self, seen: Seen) -> Term:
        return Term(seen.logits.sum())


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("x", dict, "takes a subclass of fastget.methods.base.Method"),
        ("x", WithoutForward, r"WithoutForward has no forward\(seen\)"),
        ("x", WithoutConfig, "WithoutConfig.Config must be a frozen dataclass"),
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


def test_modules_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"method\.module: no module 'no_such_module'"):
        make_config({"method.module": "no_such_module"})
    with pytest.raises(ValueError, match=r"method.module: no file .*none.py"):
        make_config({"method.module": str(tmp_path / "none.py")})


def test_the_registry_reserves_the_other_sections() -> None:
    from fastget.config.config import FIXED

    assert set(methods._TAKEN) == set(FIXED)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_declares_what_it_is(name: str) -> None:
    cls = methods.method_of(name)
    assert cls.Config is methods.settings_of(name)
    assert issubclass(cls.Config, Settings)
    assert cls.needs <= {"target", "warm-up"}
    assert "default" in cls.Config.presets
    for recipe in cls.Config.presets:
        assert make_config({"method.name": name}, recipe=recipe).method.name == name
