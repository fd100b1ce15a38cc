"""Light to start: what needs no network does not load torch, and what is misspelt is answered at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fastget
from fastget.commands.main import COMMANDS
from tests.pictures import this_fastget, write_domains

HEAVY = {"torch", "torchvision", "triton", "nvidia", "sklearn", "matplotlib", "tensorboard"}


def start(*words: str) -> tuple[int, str, set[str]]:
    """The exit code and the output of `python -m ...`, and which heavy packages it loaded."""
    command = [sys.executable, "-X", "importtime", "-m", *words]
    done = subprocess.run(command, env=this_fastget(), capture_output=True, text=True)
    loaded = set(re.findall(r"^import time:.*\| +(\w+)", done.stderr, re.MULTILINE))
    assert "fastget" in loaded  # the times were read
    return done.returncode, done.stdout, loaded & HEAVY


def test_help_has_a_line_for_every_command() -> None:
    code, text, heavy = start("fastget", "--help")
    assert (code, heavy) == (0, set())
    for name in COMMANDS:
        assert f"{name} " in text
        assert import_module(f"fastget.commands.{name}").HELP.split(":")[0] in " ".join(text.split())


@pytest.mark.parametrize(
    "words",
    [
        ["trian"],
        [],
        ["--nonsense"],
        ["train", "--nonsense"],
        ["train", "--method", "gett"],
        ["train", "--set", "get.tua=1"],
        ["train", "--set", "get.tau=-1"],
        ["train", "--recipe", "papr"],
        ["plan", "--card", "h10"],
        ["plan", "--images", "-1,2"],
        ["predict", "--nonsense"],
        ["eval", "--checkpoint", "run", "--nonsense"],
        ["export"],
        ["demo", "--sedes", "1"],
        ["report"],
        ["report", "run", "--projection", "mds"],
        ["card", "run", "--nonsense"],
        ["data", "lits"],
        ["features", "--nonsense"],
        ["features", "--out", "o", "--set", "network.nam=x"],
        ["features", "show", "nowhere"],
        ["data", "list", "--nonsense"],
        ["selftest", "--nonsense"],
        ["doctor", "--nonsense"],
        ["compare", "--methods", "gett"],
        ["compare", "--tasks", "fonts-fonts"],
        ["sweep", "--set", "get.tau=0.1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_answered_at_once(words: list[str]) -> None:
    assert start("fastget", *words) == (2, "", set())


def test_the_fields_are_listed_at_once() -> None:
    code, text, heavy = start("fastget", "train", "--help")
    assert (code, heavy) == (0, set())
    for name in ("get.tau [0.15]", "mcc.temperature", "atdoc-na.neighbours", "train.seeds"):
        assert name in text


def test_data_needs_no_torch(tmp_path: Path) -> None:
    code, text, heavy = start("fastget", "data", "list", "--json")
    assert (code, heavy) == (0, set())
    assert "office-home" in json.loads(text)
    root = write_domains(tmp_path, per_class=1)
    code, text, heavy = start("fastget", "data", "check", "folder", "--root", str(root))
    assert (code, heavy) == (0, set())
    assert "6 files checked" in text


def test_a_check_worker_needs_no_torch() -> None:
    code, _, heavy = start("fastget.data.check.worker")
    assert (code, heavy) == (0, set())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_help_line_arguments_and_a_function(name: str) -> None:
    module = import_module(f"fastget.commands.{name}")
    assert module.HELP
    assert callable(module.add_arguments)
    assert callable(module.run)
    assert f"`fastget {name}`" in (module.__doc__ or "")


def test_every_file_is_a_command() -> None:
    files = {path.stem for path in Path(import_module("fastget.commands").__path__[0]).glob("*.py")}
    assert files - {"__init__", "main", "output", "usage"} == set(COMMANDS)


def test_the_public_names_are_there_when_they_are_asked_for() -> None:
    assert set(fastget.__all__) <= set(dir(fastget))
    for name in fastget.__all__:
        assert getattr(fastget, name) is not None
    assert fastget.train.__module__ == "fastget.training.train"
    assert fastget.reference.posterior is import_module("fastget.reference").posterior
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        fastget.trian  # noqa: B018  # the look-up is the test
