"""The table of what fails on an older revision: its tests are there, and only an assertion counts."""

import ast
from pathlib import Path

from tests.before import HERE, POINTS, node, outcomes, table


def test_every_point_has_tests_and_all_of_silent_is_listed() -> None:
    assert list(POINTS) == list(range(1, 25))
    named = {node(name).partition("[")[0] for names in POINTS.values() for name in names}
    files = {test.partition("::")[0] for test in named} | {
        str(file.relative_to(HERE)) for file in (HERE / "tests" / "silent").glob("test_*.py")
    }
    defined = {
        f"{file}::{part.name}"
        for file in files
        for part in ast.parse((HERE / file).read_text(encoding="utf-8")).body
        if isinstance(part, ast.FunctionDef) and part.name.startswith("test_")
    }
    assert named <= defined
    assert {test for test in defined if test.startswith("tests/silent/")} <= named


def test_only_an_assertion_shows_something(tmp_path: Path) -> None:
    name = node(POINTS[3][0])
    where, _, test = name.partition("::")
    module = where.removesuffix(".py").replace("/", ".")
    kinds = {
        '<failure message="AssertionError: both wrote&#10;assert 1 == 2"/>': ("failed", "both wrote"),
        '<failure message="assert 1 == 2"/>': ("failed", "assert 1 == 2"),
        '<failure message="ImportError: no such name"/>': ("error", "ImportError: no such name"),
        '<error message="collection failure"/>': ("error", "collection failure"),
        '<skipped message="a device of Linux"/>': ("skipped", "a device of Linux"),
        "": ("passed", ""),
    }
    for content, expected in kinds.items():
        file = tmp_path / "report.xml"
        file.write_text(f'<testsuites><testcase classname="{module}" name="{test}">{content}</testcase></testsuites>')
        (found,) = outcomes(file)
        assert (found.test, found.kind, found.reason) == (name, *expected)
        rows, unproven = table([found])
        assert (3 in unproven) == (expected[0] != "failed")
        assert len(unproven) >= len(POINTS) - 1  # the others were not found at all
        assert any(f"| {found.kind} | {found.reason} |" in row for row in rows)
