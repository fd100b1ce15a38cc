"""What the pages say in numbers and tables is what the code says."""

import re

import pytest

from fastget import bases, methods
from tests.documents.blocks import ROOT
from tests.documents.tables import TABLES, renewed, shown


@pytest.mark.parametrize("page", TABLES)
def test_a_table_is_the_codes(page: str) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == renewed(page), "run python -m tests.documents.tables"


def test_the_first_page_counts_right() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"<b>(\d+) \u00d7 (\d+)</b>", text) == [(str(len(methods.names())), str(len(bases.names())))]


def test_every_setting_that_differs_is_explained() -> None:
    """Each field of the recipe `paper` that is no number has its row among the equations."""
    text = (ROOT / "docs" / "differs.md").read_text(encoding="utf-8")
    equations = text[text.index("## Equations") :]
    for name, value in methods.settings_of("get").presets["paper"].items():
        if not isinstance(value, float):
            assert f"get.{name}={shown(value)}" in equations, name
