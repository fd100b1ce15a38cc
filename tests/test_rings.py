"""The table of rings names tests that there are, and a test of the first ring that takes too long fails by its name."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import conftest
from tests.conftest import HERE, SECOND, THIRD, UNLIMITED, is_named, pytest_runtest_call


def item(name: str, rings: str = "1") -> Any:
    return SimpleNamespace(nodeid=f"tests/{name}", config=SimpleNamespace(getoption=lambda option: rings))


@pytest.mark.parametrize("line", [*SECOND, *THIRD])
def test_a_line_names_what_is_there(line: str) -> None:
    place, _, test = line.partition("[")[0].partition("::")
    where = HERE / place
    files = [where] if where.is_file() else sorted(where.rglob("test_*.py"))
    wanted = f"def {test}(" if test else "def test_"
    assert any(wanted in file.read_text(encoding="utf-8") for file in files)


def test_who_is_named() -> None:
    one = item("fuzz/test_lists.py::test_lists[50000]")
    for line in ("fuzz", "fuzz/test_lists.py", "fuzz/test_lists.py::test_lists", "fuzz::test_lists[50000"):
        assert is_named(one, line)
    for line in ("fuz", "fuzz/test_list", "fuzz/test_lists.py::test_list", "fuzz::test_lists[3000"):
        assert not is_named(one, line)


def test_no_file_says_it_of_itself() -> None:
    files = [file for file in HERE.rglob("*.py") if file not in (Path(__file__), HERE / "conftest.py")]
    assert not [file for file in files if re.search(r"mark\.slow\b", file.read_text(encoding="utf-8"))]


def test_what_takes_too_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def took(name: str, rings: str) -> None:
        call = cast(Any, pytest_runtest_call)(item(name, rings))
        next(call)
        next(call, None)

    monkeypatch.setattr(conftest, "LIMIT", -1.0)
    took("a.py::test_b", "12")
    with pytest.raises(pytest.fail.Exception, match=r"a\.py::test_b takes 0\.0 CPU-seconds"):
        took("a.py::test_b", "1")
    monkeypatch.setattr(conftest, "fixed_work", lambda: -2.0)  # no machine is that slow: the limit is above any time
    took("a.py::test_b", "1")
    monkeypatch.setenv(UNLIMITED, "1")
    took("a.py::test_b", "1")
