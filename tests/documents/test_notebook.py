"""docs/notebooks: real notebooks, whose cells run."""

import ast
import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import nbformat
import pytest

from fastget.commands.main import COMMANDS, build_parser, main
from tests.documents.blocks import ROOT

FILES = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
FEWER = {"STEPS = 500": "STEPS = 6"}  # a run of them takes a minute


def cells(file: Path) -> list[str]:
    """The code, cell by cell."""
    return ["".join(cell["source"]) for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]
            if cell["cell_type"] == "code"]  # fmt: skip


def as_python(cell: str) -> str:
    """Jupyter's `!command` as a call."""
    return re.sub(r"^!(.+)$", lambda found: f"command({found[1]!r})", cell, flags=re.MULTILINE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_a_notebook_that_opens(file: Path) -> None:
    nbformat.validate(nbformat.read(file, as_version=4))
    text = file.read_text(encoding="utf-8")
    badge = re.search(r"\]\((https://colab\.research\.google\.com/github/([^/]+/[^/]+)/blob/main/([^)]+))\)", text)
    assert badge
    assert badge[3] == str(file.relative_to(ROOT))
    assert f"https://github.com/{badge[2]}" in text  # what it installs is where it comes from
    assert badge[1] in (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")
    for cell in cells(file):
        ast.parse(as_python(cell))
        for line in re.findall(r"^!fastget (.+)$", cell, re.MULTILINE):
            assert line.split()[0] in COMMANDS
            build_parser(line.split()[0]).parse_args(shlex.split(line))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_its_cells_run(file: Path) -> None:
    import matplotlib

    matplotlib.use("agg")

    def command(line: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(shlex.split(line)[1:]) == 0, line

    names: dict[str, Any] = {"command": command}
    code = "\n\n".join(map(as_python, cells(file)))
    for many, few in FEWER.items():
        assert many in code
        code = code.replace(many, few)
    exec(compile(code, file, "exec"), names)
    assert Path("both.html").stat().st_size > 20_000
    assert set(names["results"]) == {"source-only", "get"}
