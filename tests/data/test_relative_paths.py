"""Relative paths of a run, from another folder: as given, else where they were given."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastget.config import DataConfig
from fastget.data.domains import load_domains
from fastget.data.relative_paths import as_found, with_start
from tests.data.support import on_folders
from tests.pictures import write_domains


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = write_domains(tmp_path / "a" / "data", per_class=1).parent, tmp_path / "b"
    second.mkdir()
    monkeypatch.chdir(first)
    data = with_start(on_folders(Path("data")))
    assert (data.root, data.started_in) == ("data", str(first))
    assert as_found(data) == (data, [])
    monkeypatch.chdir(second)
    domains = load_domains(data)
    assert len(domains.source) == 3
    assert any(str(first / "data") in note for note in domains.notes)
    assert with_start(data).started_in == str(first)  # a run that is repeated from here
    write_domains(second / "data", per_class=2)
    assert len(load_domains(data).source) == 6  # as given goes first
    assert with_start(data).started_in == str(second)


@pytest.mark.parametrize("root", ["data", None])
def test_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str | None) -> None:
    write_domains(tmp_path / "data", per_class=1)
    before = "" if root else "data/"
    for name in ("photo", "sketch"):
        Path(f"{name}.txt").write_text(f"{before}{name}/ant/000.png 0\n{before}{name}/bee/000.png 1\n")
    data = with_start(DataConfig(name="lists", root=root, source="photo.txt", target="sketch.txt"))
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    assert len(load_domains(data).target) == 2


def test_nothing_relative_has_no_start(tmp_path: Path) -> None:
    assert with_start(DataConfig()).started_in is None
    assert with_start(on_folders(tmp_path)).started_in is None
