"""The repository's results, and the tables of README and docs that are made from them."""

import json
import shutil
from pathlib import Path

import pytest

from fastget.archive.__main__ import main as archive
from fastget.archive.leaderboard import filled, pages
from fastget.archive.record import read_all

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
PAGES = pages(ROOT)


def test_readme_and_docs_show_results() -> None:
    assert {"README.md", "docs/results.md"} <= {str(page.relative_to(ROOT)) for page in PAGES}
    assert len(read_all(RESULTS)) >= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_as_the_results_have_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text, read_all(RESULTS), page.name) == text, "run `python -m fastget.archive tables`"


def test_a_broken_result_turns_the_check_red(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(RESULTS, tmp_path / "results")
    shutil.copy(ROOT / "README.md", tmp_path / "README.md")
    file = tmp_path / "results" / "digits" / "uda" / "get.json"
    check = ["tables", "--check", "--results", str(tmp_path / "results"), str(tmp_path / "README.md")]
    assert archive(check) == 0
    whole = file.read_text(encoding="utf-8")
    tree = json.loads(whole)
    file.write_text(json.dumps({**tree, "ours": 99.9}))  # a figure alone: it does not add up
    assert archive(check) == 2
    assert "does not add up" in " ".join(capsys.readouterr().err.split())
    column = {**tree["tasks"]["fonts->handwritten"], "ours": 99.9, "std": None, "n": 1, "per_seed": {"0": 99.9}}
    tree = {**tree, "ours": 99.9, "std": None, "n": 1, "tasks": {"fonts->handwritten": column}}
    file.write_text(json.dumps(tree))  # all of it: the page is another
    assert archive(check) == 1
    assert "README.md is not as" in capsys.readouterr().out
    file.write_text(whole[:-100])
    assert archive(check) == 2
    file.write_text(whole)
    assert archive(check) == 0
