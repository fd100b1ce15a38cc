"""Light to start: what needs no network does not load torch, and what is misspelt is answered at once."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fastget
from fastget.commands.main import COMMANDS
from tests.pictures import this_fastget, write_domains

HEAVY = {"torch", "torchvision", "triton", "nvidia", "sklearn", "matplotlib", "tensorboard"}
WRONG = [
    [],
    ["--nonsense"],
    ["train", "--nonsense"],
    ["train", "--method", "gett"],
    ["train", "--set", "get.tua=1"],
    ["train", "--recipe", "papr"],
    ["plan", "--card", "h10"],
    ["plan", "--images", "-1,2"],
    ["predict", "--nonsense"],
    ["eval", "--checkpoint", "run", "--nonsense"],
    ["export"],
    ["demo", "--sedes", "1"],
    ["report"],
    ["report", "run", "--projection", "mds"],
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
]
ANSWERS = """
import contextlib, io, json, sys
from fastget.commands.main import main
def answer(words):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    return code, said.getvalue(), sorted(sys.modules)
print(json.dumps([answer(words) for words in json.load(sys.stdin)]))
"""


def answers(commands: list[list[str]]) -> list[tuple[int, str, set[str]]]:
    """The exit code and the output of each command, in one new process, and the heavy packages that it has by then."""
    words = [sys.executable, "-c", ANSWERS]
    given = json.dumps(commands)
    done = subprocess.run(words, input=given, env=this_fastget(), capture_output=True, text=True, check=True)
    return [(code, text, HEAVY & set(modules)) for code, text, modules in json.loads(done.stdout)]


def test_wrong_usage_is_answered_at_once() -> None:
    for words, answer in zip(WRONG, answers(WRONG), strict=True):
        assert answer == (2, "", set()), words


def test_help_and_data_need_no_torch(tmp_path: Path) -> None:
    root = str(write_domains(tmp_path, per_class=1))
    given = [["--help"], ["train", "--help"], ["data", "list", "--json"], ["data", "check", "folder", "--root", root]]
    (_, about, _), (_, fields, _), (_, listed, _), (_, checked, _) = found = answers(given)
    assert [(code, heavy) for code, _, heavy in found] == [(0, set())] * 4
    for name in COMMANDS:
        assert f"{name} " in about
        assert import_module(f"fastget.commands.{name}").HELP.split(":")[0] in " ".join(about.split())
    for name in ("get.tau [0.15]", "mcc.temperature", "atdoc-na.neighbours", "train.seeds"):
        assert name in fields
    assert "office-home" in json.loads(listed)
    assert "6 files checked" in checked


def test_a_check_worker_needs_no_torch() -> None:
    words = [sys.executable, "-c", "import fastget.data.check.worker, sys; print(*sys.modules)"]
    done = subprocess.run(words, env=this_fastget(), capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_help_line_arguments_and_a_function(name: str) -> None:
    module = import_module(f"fastget.commands.{name}")
    assert module.HELP
    assert callable(module.add_arguments)
    assert callable(module.run)
    assert f"`fastget {name}`" in (module.__doc__ or "")


def test_every_file_is_a_command() -> None:
    files = {path.stem for path in Path(import_module("fastget.commands").__path__[0]).glob("*.py")}
    assert files - {"__init__", "main", "options", "output", "usage"} == set(COMMANDS)


def test_the_public_names_are_there_when_they_are_asked_for() -> None:
    assert set(fastget.__all__) <= set(dir(fastget))
    for name in fastget.__all__:
        assert getattr(fastget, name) is not None
    assert fastget.train.__module__ == "fastget.training.train"
    assert fastget.reference.posterior is import_module("fastget.reference").posterior
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        fastget.trian  # noqa: B018  # the look-up is the test
