"""The README's equation table: every entry is there."""

import importlib
import re
from pathlib import Path

import pytest

from fastget import reference

ROOT = Path(__file__).resolve().parent.parent
ROWS = re.findall(r"^\| ([^|]+) \| `(fastget\.reference\.\w+)` \| `(fastget\.kernels\.\w+)` \| (.+) \|$",
                  (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)  # fmt: skip


def test_the_table_covers_every_function() -> None:
    named = {row[1].rsplit(".", 1)[1] for row in ROWS}
    functions = {name for name in reference.__all__ if callable(getattr(reference, name)) and name[0].islower()}
    assert named == functions


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_entry_resolves(row: tuple[str, str, str, str]) -> None:
    equation, *functions, tests = row
    for path in functions:
        module, name = path.rsplit(".", 1)
        function = getattr(importlib.import_module(module), name)
        number = re.match(r"\((\d+)", equation)
        if "reference" in path and number and "sums" not in name and number[1] != "7":
            assert f"Eq. ({number[1]}" in function.__doc__
    for test in re.findall(r"`([^`]+)`", tests):
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text
        assert functions[0].rsplit(".", 1)[1] in text
