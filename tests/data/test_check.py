"""Every damaged file is named with the reason; what is unchanged is looked at once."""

from __future__ import annotations

import builtins
import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from fastget.data.check import files as check_module
from fastget.data.check.cache import Remembered
from fastget.data.check.files import check
from fastget.data.decode import Problem, look_at_ends
from fastget.data.domains import load_domains
from tests.data.support import kinds, on_folders
from tests.pictures import photograph, write_damage, write_domains, write_encodings


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each test starts with nothing remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def test_every_kind_of_damage_is_named(tmp_path: Path) -> None:
    damage = write_damage(tmp_path)
    photograph().save(tmp_path / "png_named.jpg", format="PNG")
    files = [str(tmp_path / name) for name in [*damage, "good.jpg", "good.png", "png_named.jpg"]]
    inside = {"zeros_inside.jpg", "bit_inside.png"}  # which only decoding finds
    assert kinds(check(files, full=False).bad) == {k: v for k, v in damage.items() if k not in inside}
    done: list[int] = []
    report = check(files, full=True, again=True, advance=done.append)
    assert kinds(report.bad) == damage
    assert kinds(report.warnings) == {"png_named.jpg": "misnamed"}
    assert all(problem.reason for problem in report.problems)
    assert sum(done) == report.checked == len(files)
    assert [p.path for p in report.problems] == [f for f in files if f in {p.path for p in report.problems}]
    # What a full check found, a quick one knows; and decoding is not needed again.
    again = check([*files, files[0]], full=False)  # a file that is listed twice is checked once
    assert kinds(again.problems) == kinds(report.problems)
    assert (again.checked, again.remembered) == (len(files), len(files) - 4)  # but gone, empty, directory, dangling


def test_good_files_of_every_encoding_pass(tmp_path: Path) -> None:
    report = check([str(tmp_path / name) for name in write_encodings(tmp_path)], full=True)
    assert report.bad == []
    named = [("png", "jpg"), ("jpeg", "png"), ("bmp", "jpg"), ("webp", "jpg")]
    assert set(kinds(report.warnings)) == {f"{k}_named.{s}" for k, s in named}


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "secret.jpg")
    photograph().save(file)
    os.chmod(file, 0)
    if os.geteuid() == 0:  # root may read everything: let `open` refuse
        original = builtins.open

        def refuse(path: Any, *args: Any, **kwargs: Any) -> Any:
            if path == file:
                raise PermissionError(errno.EACCES, "Permission denied", file)
            return original(path, *args, **kwargs)

        monkeypatch.setattr(builtins, "open", refuse)
    assert kinds(check([file], full=False).bad) == {"secret.jpg": "no permission"}
    monkeypatch.undo()
    os.chmod(file, stat.S_IRUSR)
    assert check([file], full=False).bad == []  # it is not remembered as bad


def test_results_are_remembered_by_path_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(tmp_path / f"{i}.jpg") for i in range(3)]
    for file in files:
        photograph().save(file)
    assert check(files, full=False).remembered == 0
    looked: list[str] = []

    def watched(path: str, max_pixels: int) -> Problem | None:
        looked.append(path)
        return look_at_ends(path, max_pixels)

    monkeypatch.setattr(check_module, "look_at_ends", watched)
    assert check(files, full=False).remembered == 3
    assert looked == []
    Path(files[1]).write_text("no longer an image")
    assert kinds(check(files, full=False).bad) == {"1.jpg": "not an image"}
    assert looked == [files[1]]
    os.utime(files[0], ns=(1, 1))
    check(files, full=False)
    assert looked == [files[1], files[0]]
    # A damaged or unwritable memory costs time only.
    Remembered.file().write_bytes(b"rubbish")
    report = check(files, full=False)
    assert kinds(report.bad) == {"1.jpg": "not an image"}
    assert report.remembered == 0
    assert str(Remembered.file()) in report.notes[0]
    report = check(files, full=False)  # it was written anew
    assert (report.remembered, report.notes) == (3, [])
    before = len(looked)
    assert check(files, full=False, again=True).remembered == 0
    assert looked[before:] == files


# --- the worker ----------------------------------------------------------------------------------


def test_a_worker_answers_and_names_the_file_that_crashes_it(tmp_path: Path) -> None:
    damage = write_damage(tmp_path)
    photograph().convert("CMYK").save(tmp_path / "four_colours.jpg")
    names = ["good.jpg", "four_colours.jpg", "zeros_inside.jpg", "good.jpg", "bit_inside.png", "half.jpg", "gone.jpg"]
    worker = check_module._Worker()
    try:
        answers = [worker.inspect(str(tmp_path / name)) for name in names]
        worker._process.kill()
        crash = worker.inspect(str(tmp_path / "good.jpg"))
        assert crash
        assert "makes the decoder crash (exit code -9)" in crash.reason
        assert worker.inspect(str(tmp_path / "good.png")) is None  # a new one has taken over
    finally:
        worker.close()
    assert [answer and answer.kind for answer in answers] == [damage.get(name) for name in names]
    assert answers[2]
    assert "mid-stream" in answers[2].reason


# --- at the start of a run -----------------------------------------------------------------------


def test_bad_images_stop_a_run_or_are_left_out(tmp_path: Path) -> None:
    root = write_domains(tmp_path)
    damage = write_damage(root / "sketch" / "bee")
    with pytest.raises(ValueError, match=r"images cannot be read.*--bad-images skip"):
        load_domains(on_folders(root))
    domains = load_domains(on_folders(root, bad_images="skip"))
    unseen = ("gone.jpg", "zeros_inside.jpg", "bit_inside.png")
    assert kinds(domains.left_out) == {name: kind for name, kind in damage.items() if name not in unseen}
    assert len(domains.target) == 36 + 4  # good.jpg, good.png and the two damaged inside
    assert {entry["path"] for entry in domains.protocol["left_out"]} == {p.path for p in domains.left_out}
    # After a full check, the damage inside is known at the start of a run as well.
    check([str(root / "sketch" / "bee" / name) for name in damage], full=True)
    assert len(load_domains(on_folders(root, bad_images="skip")).target) == 36 + 2


def test_a_domain_of_nothing_but_bad_files(tmp_path: Path) -> None:
    root = write_domains(tmp_path)
    for file in (root / "sketch").glob("*/*"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="all 36 images of sketch are bad"):
        load_domains(on_folders(root, bad_images="skip"))
