"""docs/: a page for every method and base that names all there is to set; what it runs is tests/documents."""

import re
from pathlib import Path
from typing import Any

import pytest

from fastget import bases, methods
from fastget.config import every_section, fields_of
from tests.documents.blocks import BLOCKS, ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINES = [(ROOT / block.page, " ".join(words)) for block in BLOCKS for words in block.commands]


def default(value: Any) -> str:
    """As a page writes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def assert_fields(page: Path, section: str) -> None:
    """A row `| field | default | meaning |` for each."""
    kind = every_section().get(section)  # a base may have none
    for info in () if kind is None else fields_of(kind).values():
        row = rf"^\| `{re.escape(section)}\.{info.name}` \| `?{re.escape(default(info.default))}`? \|"
        assert re.search(row, page.read_text(encoding="utf-8"), re.MULTILINE), info.name


@pytest.mark.parametrize("name", methods.names())
def test_a_method_has_its_page(name: str) -> None:
    page = DOCS / "methods" / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    assert_fields(page, name)
    assert all(f"`{recipe}`" in text for recipe in methods.settings_of(name).presets)
    assert any(f"--method {name}" in line for where, line in LINES if where == page)
    assert f"| [{name}]({name}.md)" in (DOCS / "methods" / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", bases.names())
def test_a_base_has_its_page(name: str) -> None:
    page = DOCS / "bases" / f"{name}.md"
    assert_fields(page, name)
    assert any(f"method.base={name}" in line for where, line in LINES if where == page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https://)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link
