"""The layout: rooms that import what they may, `kernels/` as `fastget.kernels`, one version."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fastget
from tests.rooms import ALLOWED, INSIDE, LIGHT, ROOT, files, graph, imports, picture, room_of, written, wrong_imports


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_imports_what_its_room_may(file: Path) -> None:
    assert not wrong_imports(room_of(file), file.read_text(encoding="utf-8"))


def test_a_wrong_import_is_seen() -> None:
    assert wrong_imports("data", "from fastget.training.engine import Engine") == {"training"}
    assert wrong_imports("data", "def f():\n    from fastget import kernels") == {"kernels"}
    assert wrong_imports("reference", "import fastget.common.text") == {"common"}
    assert wrong_imports("", "from fastget.runs import folder") == {"runs"}
    assert wrong_imports("kernels", "from fastget.kernels.audit import traffic") == {"audit"}, "of no step"
    assert wrong_imports("data", "from fastget import train") == {"training"}
    for hidden in ("from ..training.engine import Engine", "import fastget"):
        with pytest.raises(AssertionError, match=r"relative|bare"):
            wrong_imports("data", hidden)
    assert not wrong_imports("training", "from fastget.methods import method_of\nfrom fastget import __version__")


def test_every_room_is_in_the_table() -> None:
    folders = {path.name for path in (ROOT / "fastget").iterdir() if (path / "__init__.py").exists()}
    assert folders | {"reference", *INSIDE} == set(ALLOWED)
    assert {room_of(file) for file in files()} == {*ALLOWED, ""}


def test_nothing_imports_what_imports_it() -> None:
    """But for the registries, which the configuration reads before anything is loaded."""
    edges = graph()
    edges["config"] -= {"methods", "bases"}
    seen: set[str] = set()
    while done := {room for room in edges if room not in seen and edges[room] <= seen}:
        seen |= done
    assert seen == set(edges)


def test_the_configuration_reads_registries_alone() -> None:
    for file in (ROOT / "fastget" / "config").glob("*.py"):
        for name in imports(file.read_text()):
            if name.startswith(("fastget.methods", "fastget.bases")):
                assert name in LIGHT, (file, name)


def test_the_picture_of_the_rooms_is_current() -> None:
    assert written() == picture(), "draw it anew: python -m tests.rooms"


def test_a_class_has_a_name_of_its_own() -> None:
    """In all rooms together; but a section of settings is named after the method or base model that it is of."""
    places: dict[str, list[str]] = {}
    for file in files():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body if file.name != "settings.py" else []:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("room", ["training", "runs", "commands", "loading"])
def test_these_rooms_name_no_method(room: str) -> None:
    """Neither as a text, nor by importing one: what they know of a method is what it declares."""
    from fastget import methods

    names = "|".join(re.escape(name) for name in methods.names())
    texts = re.compile(rf"""["'](?:{names})["'.]|\b(?:GeT|MCC|ATDOC)\b""")
    modules = re.compile(r"fastget\.methods\.(?!base\b|backend\b|tuned\b)\w+")
    for file in (ROOT / "fastget" / room).rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        assert not texts.findall(source), file
        assert not modules.findall(source), file


def compared_texts(source: str) -> set[str]:
    """The texts that a module compares something with, by ==, in or match, or looks up in a table of its own."""
    nodes = list(ast.walk(ast.parse(source)))
    compared = [part for node in nodes if isinstance(node, ast.Compare) for part in (node.left, *node.comparators)]
    compared += [node.value for node in nodes if isinstance(node, ast.MatchValue)]
    compared += [key for node in nodes if isinstance(node, ast.Dict) for key in node.keys if key is not None]
    parts = [part for node in compared for part in ast.walk(node)]
    return {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def test_nobody_asks_for_a_methods_name() -> None:
    """No `if method == ...` anywhere."""
    from fastget import methods

    assert compared_texts("if config.method.name == 'get' or x in ('mcc',): {'pl': 1}[x]") == {"get", "mcc", "pl"}
    for file in files():
        if file == Path(methods.__file__):
            continue  # the registry
        assert not compared_texts(file.read_text(encoding="utf-8")) & set(methods.names()), file


def test_a_bare_import_of_kernels_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", "import kernels"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "imported as 'fastget.kernels'" in done.stderr


def test_version() -> None:
    assert f'VERSION = "{fastget.__version__}"' in (ROOT / "setup.py").read_text()
