"""Files: whole or not at all, and hashes that caches and splits are found by for ever."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fastget.common.files import CHUNK, made_whole, path_keys, sizes_and_times, write_atomically


def test_a_file_is_the_old_or_the_new_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_atomically(file, b"old")

    def stop_half_way() -> None:
        with made_whole(file) as making:
            making.write_bytes(b"ne")
            assert file.read_bytes() == b"old"
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        stop_half_way()
    assert file.read_bytes() == b"old"
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_two_who_write_the_same_file_do_not_meet(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with made_whole(file) as one:
        with made_whole(file) as other:
            assert one != other
            assert one.suffix == other.suffix == ".json"
            one.write_bytes(b"one")
            other.write_bytes(b"other")
        assert file.read_bytes() == b"other"
    assert file.read_bytes() == b"one"


def test_a_folder_is_made_whole_too(tmp_path: Path) -> None:

    def make(content: str) -> None:
        with made_whole(tmp_path / "a") as making:
            making.mkdir()
            (making / "x").write_text(content)

    make("1")
    with pytest.raises(OSError, match="not empty"):
        make("2")
    assert (tmp_path / "a" / "x").read_text() == "1"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_has_the_permissions_that_any_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "whole", b"")
    plain, whole = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "whole"))
    assert plain == whole


def test_keys_never_change() -> None:
    """They are stored in the caches of people, and draw the splits that results were published on."""
    paths = ["photo/ant/000.jpg", "\udcff.png", "/data/photo/ant/000.jpg", "/data/\udcff.png"]
    assert path_keys(paths).tolist() == [
        8076460872219265252,
        4951539192741454995,
        1823360575885011578,
        14077611904611768923,
    ]
    assert path_keys(["photo/ant/000.jpg"], "/data/").tolist() == [1823360575885011578]


def test_sizes_and_times(tmp_path: Path) -> None:
    files = []
    for i in range(CHUNK + 5):
        (tmp_path / str(i)).write_bytes(bytes(i))
        os.utime(tmp_path / str(i), ns=(1, 1000 + i))
        files.append(str(tmp_path / str(i)))
    found = sizes_and_times([*files, str(tmp_path / "none")], workers=2)
    assert found[:-1].tolist() == [[i, 1000 + i] for i in range(CHUNK + 5)]
    assert found[-1].tolist() == [-1, -1]
