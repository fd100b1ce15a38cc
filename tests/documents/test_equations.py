"""The table of equations on GeT's page: every function is in it, and every entry is there."""

import importlib
import inspect
import re
from typing import Any

import pytest

from fastget import reference
from fastget.methods.get import prior
from tests.documents.blocks import ROOT

ROWS = re.findall(r"^\| ([^|]+) \| `(fastget\.[\w.]+)` \| (?:`(fastget\.kernels\.\w+)`|[^`|]+) \| `(tests/[^`]+)` \|$",
                  (ROOT / "docs" / "methods" / "get.md").read_text(encoding="utf-8"), re.MULTILINE)  # fmt: skip


def named(path: str) -> Any:
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


def numbers(text: str) -> set[str]:
    """Of equations: 3 and 3* are two."""
    return set(re.findall(r"\((\d+[*']?)\)", text.replace("\\", "")))


def test_every_equation_has_its_row() -> None:
    stated = {
        f"{module.__name__}.{name}"
        for module in (reference, prior)
        for name, value in inspect.getmembers(module, inspect.isfunction)
        if value.__module__ == module.__name__ and re.match(r"Eqs?\. ", value.__doc__ or "")
    }
    assert len(stated) >= 9
    assert stated - {"fastget.reference.logits", "fastget.reference.rebalance_logits"} <= {row[1] for row in ROWS}
    assert set(map(str, range(2, 7))) | {"10", "12", "13", "2'", "3'", "3*", "6'"} <= numbers(
        "".join(r[0] for r in ROWS)
    )


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_entry_resolves(row: tuple[str, str, str, str]) -> None:
    equation, function, kernel, tests = row
    assert callable(named(function))
    assert not kernel or callable(named(kernel))
    assert function.rsplit(".", 1)[1] in (ROOT / tests).read_text(encoding="utf-8")
    source = inspect.getsource(named(function))
    for number in numbers(equation):
        assert f"({number})" in source, number
