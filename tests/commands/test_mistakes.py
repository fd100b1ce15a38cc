"""Eighty mistakes of users (mistakes.py): each is answered by a sentence and its exit code, as docs/errors.md says."""

from pathlib import Path

import pytest

from tests.commands.mistakes import MISTAKES, Mistake, answer, differs, prepare, stored, wrong


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    prepare(folder)
    return folder


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_it_is_answered(mistake: Mistake, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    code, said = answer(mistake)
    assert wrong(mistake, code, said) is None, said
    assert differs(mistake, said) is None  # the page that people look it up in


def test_a_bad_answer_is_told() -> None:
    mistake = Mistake("some", "train", "--root")
    assert wrong(mistake, 2, "fastget: give\n--root") is None
    assert wrong(mistake, 0, "fastget: give --root") == "exit code 0, not 2"
    assert wrong(mistake, 2, "") == "nothing of '--root'"
    assert wrong(mistake, 2, "Traceback (most recent call last): --root") == "a traceback"


def test_the_page_is_compared() -> None:
    assert list(stored()) == [mistake.what.lower() for mistake in MISTAKES]
    mistake = next(mistake for mistake in MISTAKES if mistake.what == "a misspelt command")
    _, words = stored()["a misspelt command"]
    assert differs(mistake, f"usage: fastget error: {words}") is None
    assert "another answer" in str(differs(mistake, "fastget: no"))
    assert "lacks" in str(differs(Mistake("something new", "train", "x"), ""))
