"""Every damaged file is named with the reason; what is unchanged is looked at once."""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastget.config import DataConfig
from fastget.data.check import files as check_module
from fastget.data.check.cache import Remembered
from fastget.data.check.files import check
from fastget.data.decode import BadImage, Problem, look_at_ends, read_image, read_sound
from fastget.data.domains import load_domains
from tests.pictures import photograph, write_damage, write_domains, write_encodings


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each test starts with nothing remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def kinds(problems: list[Problem]) -> dict[str, str]:
    return {os.path.basename(problem.path): problem.kind for problem in problems}


def test_every_kind_of_damage_is_named(tmp_path: Path) -> None:
    damage = write_damage(tmp_path)
    photograph().save(tmp_path / "png_named.jpg", format="PNG")
    files = [str(tmp_path / name) for name in [*damage, "good.jpg", "good.png", "png_named.jpg"]]
    done: list[int] = []
    report = check(files, full=True, advance=done.append)
    assert kinds(report.bad) == damage
    assert kinds(report.warnings) == {"png_named.jpg": "misnamed"}
    assert all(problem.reason for problem in report.problems)
    assert sum(done) == report.checked == len(files)
    assert [p.path for p in report.problems] == [f for f in files if f in {p.path for p in report.problems}]
    # What a full check found, a quick one knows; and decoding is not needed again.
    again = check(files, full=False)
    assert kinds(again.problems) == kinds(report.problems)
    assert again.remembered == len(files) - 4  # all but gone, empty, a directory, a dangling link


def test_a_quick_check_finds_all_but_damage_inside(tmp_path: Path) -> None:
    damage = write_damage(tmp_path)
    report = check([str(tmp_path / name) for name in [*damage, "good.jpg", "good.png"]], full=False)
    inside = {"zeros_inside.jpg", "bit_inside.png"}
    assert kinds(report.bad) == {name: kind for name, kind in damage.items() if name not in inside}


def test_good_files_of_every_encoding_pass(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in write_encodings(tmp_path)]
    report = check(files, full=True)
    assert report.bad == []
    assert set(kinds(report.warnings)) == {
        f"{k}_named.{s}" for k, s in [("png", "jpg"), ("jpeg", "png"), ("bmp", "jpg"), ("webp", "jpg")]
    }


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photograph().save(tmp_path / "secret.jpg")
    file = str(tmp_path / "secret.jpg")
    os.chmod(file, 0)
    if os.geteuid() == 0:  # root may read everything: let `open` refuse
        original = builtins.open

        def refuse(path: Any, *args: Any, **kwargs: Any) -> Any:
            if path == file:
                raise PermissionError(errno.EACCES, "Permission denied", file)
            return original(path, *args, **kwargs)

        monkeypatch.setattr(builtins, "open", refuse)
    (problem,) = check([file], full=False).bad
    assert problem.kind == "no permission"
    monkeypatch.undo()
    os.chmod(file, stat.S_IRUSR)
    assert check([file], full=False).bad == []  # it is not remembered as bad


def test_results_are_remembered_by_path_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for i in range(3):
        photograph().save(tmp_path / f"{i}.jpg")
        files.append(str(tmp_path / f"{i}.jpg"))
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


def test_a_file_listed_twice_is_checked_once(tmp_path: Path) -> None:
    photograph().save(tmp_path / "a.jpg")
    assert check([str(tmp_path / "a.jpg")] * 2, full=False).checked == 1


def test_a_decoder_that_crashes_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photograph().save(tmp_path / "a.jpg")
    photograph().save(tmp_path / "b.jpg")
    worker = check_module._Worker()
    try:
        assert worker.inspect(str(tmp_path / "a.jpg")) is None
        worker._process.kill()
        problem = worker.inspect(str(tmp_path / "a.jpg"))
        assert problem
        assert "makes the decoder crash" in problem.reason
        assert worker.inspect(str(tmp_path / "b.jpg")) is None  # a new one has taken over
    finally:
        worker.close()


def test_trailing_bytes_do_no_harm(tmp_path: Path) -> None:
    photograph().save(tmp_path / "a.jpg")
    with (tmp_path / "a.jpg").open("ab") as file:
        file.write(b"x" * 200)
    assert look_at_ends(str(tmp_path / "a.jpg")) is None
    assert read_sound(str(tmp_path / "a.jpg")).endswith(b"x" * 200)


@pytest.mark.parametrize(
    "name", ["empty.jpg", "text.jpg", "gif.jpg", "header_only.jpg", "half.png", "gone.jpg", "directory.jpg"]
)
def test_the_loaders_refuse_what_the_check_refuses(tmp_path: Path, name: str) -> None:
    damage = write_damage(tmp_path)
    for read in (read_sound, lambda file: read_image(file, 32)):
        with pytest.raises(BadImage) as error:
            read(str(tmp_path / name))
        assert error.value.kind == damage[name]
        assert error.value.path in str(error.value)


def test_png_with_a_wrong_chunk_length_is_made_sound(tmp_path: Path) -> None:
    """PIL reads it, so training does; DALI's parser might crash on it, so it gets the same pixels in another file."""
    white = Image.new("RGB", (9, 9), "white")
    white.save(tmp_path / "a.png")
    data = bytearray((tmp_path / "a.png").read_bytes())
    data[33] = 0x7F  # the length of the chunk after the header
    (tmp_path / "a.png").write_bytes(data)
    made = read_sound(str(tmp_path / "a.png"))
    assert made != bytes(data)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(made))), np.asarray(white))


# --- at the start of a run -----------------------------------------------------------------------


def folder_config(root: Path, **fields: Any) -> DataConfig:
    return DataConfig(**{"name": "folder", "root": str(root), "source": "photo", "target": "sketch", **fields})


def test_bad_images_stop_a_run_or_are_left_out(tmp_path: Path) -> None:
    root = write_domains(tmp_path)
    damage = write_damage(root / "sketch" / "bee")
    with pytest.raises(ValueError, match="images cannot be read") as error:
        load_domains(folder_config(root))
    assert "--bad-images skip" in str(error.value)
    domains = load_domains(folder_config(root, bad_images="skip"))
    found = kinds(domains.left_out)
    expected = {
        name: kind for name, kind in damage.items() if name not in ("gone.jpg", "zeros_inside.jpg", "bit_inside.png")
    }
    assert found == expected
    assert len(domains.target) == 36 + 4  # good.jpg, good.png and the two damaged inside
    assert {entry["path"] for entry in domains.protocol["left_out"]} == {p.path for p in domains.left_out}
    # After a full check, the damage inside is known at the start of a run as well.
    check([str(root / "sketch" / "bee" / name) for name in damage], full=True)
    assert len(load_domains(folder_config(root, bad_images="skip")).target) == 36 + 2


def test_a_domain_of_nothing_but_bad_files(tmp_path: Path) -> None:
    root = write_domains(tmp_path)
    for file in (root / "sketch").glob("*/*"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="all 36 images of sketch are bad"):
        load_domains(folder_config(root, bad_images="skip"))


# --- the worker ----------------------------------------------------------------------------------


def test_a_worker_answers(tmp_path: Path) -> None:
    damage = write_damage(tmp_path)
    photograph().convert("CMYK").save(tmp_path / "four_colours.jpg")
    names = ["good.jpg", "four_colours.jpg", "zeros_inside.jpg", "good.jpg", "bit_inside.png", "half.jpg", "gone.jpg"]
    worker = check_module._Worker()
    try:
        answers = [worker.inspect(str(tmp_path / name)) for name in names]
    finally:
        worker.close()
    assert [answer and answer.kind for answer in answers] == [damage.get(name) for name in names]
    assert answers[2]
    assert "mid-stream" in answers[2].reason
