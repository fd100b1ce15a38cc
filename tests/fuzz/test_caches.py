"""Damaged caches: what checks remember, and the index of packed images, cost time when damaged, never an answer."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fastget.data.check.cache import Remembered
from fastget.data.check.files import check
from fastget.data.folders import domains_from_folders
from fastget.data.packed.read import Encoding, cache_folder, find_packed
from fastget.data.packed.write import pack
from tests.fuzz.mutations import mutations
from tests.pictures import write_damage, write_domains


@pytest.mark.parametrize("count", [2000, 15_000])
def test_what_checks_remember(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    damage = write_damage(tmp_path)
    files = [str(tmp_path / name) for name in ("good.jpg", "good.png", "half.jpg", "text.jpg")]
    found = {problem.path: problem.kind for problem in check(files, full=False).bad}
    assert set(found.values()) == {damage["half.jpg"], damage["text.jpg"]}
    place = Remembered.file()
    monkeypatch.setattr(os, "fsync", lambda file: None)  # the disk's time, of which thousands would be minutes
    for data in mutations(place.read_bytes(), count, seed=count):
        place.write_bytes(data)
        report = check(files, full=False)
        assert {problem.path: problem.kind for problem in report.bad} == found
        assert report.remembered in (0, *range(5))
        assert report.remembered or report.notes or not data  # what is not remembered any more has its reason


@pytest.mark.filterwarnings("ignore:the packed cache is damaged")
@pytest.mark.parametrize("count", [2000, 7000])
def test_the_index_of_packed_images(tmp_path: Path, count: int) -> None:
    root = write_domains(tmp_path / "data", per_class=2)
    (images,) = domains_from_folders(root, "photo")
    pack(images, cache_folder(root, "auto", Encoding("raw", 8)), Encoding("raw", 8))
    index = cache_folder(root, "auto", Encoding("raw", 8)) / "index.npz"
    packed, _ = find_packed(images, "auto", 8)
    assert packed
    squares = [packed.read(i) for i in range(len(images))]
    for data in mutations(index.read_bytes(), count, seed=count):
        index.write_bytes(data)
        packed, note = find_packed(images, "auto", 8)
        assert note
        for i in range(len(images) if packed else 0):
            assert packed
            square, whole = packed.read(i), squares[i]
            assert square is None or (whole is not None and np.array_equal(square, whole))
