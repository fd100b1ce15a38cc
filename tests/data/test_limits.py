"""Files that are made to harm: a few bytes of many pixels, pipes, names that are no text, no file left to open."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from PIL import Image

from fastget.common.errors import RunFailed
from fastget.config import DataConfig
from fastget.data.check.cache import Remembered
from fastget.data.check.files import check
from fastget.data.check.worker import inspect
from fastget.data.decode import BadImage, look_at_ends, read_image, read_sound, to_rgb
from fastget.data.domains import load_domains
from fastget.data.formats import size_told
from fastget.data.lists import ImageList
from fastget.data.packed.read import Encoding
from fastget.data.packed.write import pack
from tests.pictures import image_list, photograph, write_domains

LIMIT = 300 * 220 - 1  # one less than the photograph has


def of_header(file: Path, width: int, height: int) -> str:
    """A JPEG or PNG that tells of another size than it has."""
    data = bytearray(file.read_bytes())
    if file.suffix == ".png":
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    else:
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    file.write_bytes(data)
    return str(file)


@pytest.fixture(params=["jpg", "png", "bmp", "webp", "tif", "ppm", "jp2"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    photograph().save(tmp_path / f"a.{request.param}")
    return str(tmp_path / f"a.{request.param}")


def test_one_limit_for_every_reader(file: str) -> None:
    for read in (lambda n: read_image(file, 8, max_pixels=n), lambda n: read_sound(file, n)):
        assert read(LIMIT + 1)
        with pytest.raises(BadImage, match=r"300 x 220 pixels, over data\.max_pixels=65999") as error:
            read(LIMIT)
        assert error.value.kind == "too large"
    for look in (look_at_ends, inspect):
        assert look(file, LIMIT + 1) is None
        problem = look(file, LIMIT)
        assert problem
        assert problem.kind == "too large"


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_a_bomb_is_not_decoded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photograph().save(tmp_path / name)
    file = of_header(tmp_path / name, 60_000, 60_000)
    assert size_told("PNG" if name[-1] == "g" and "png" in name else "JPEG", Path(file).read_bytes()) == (
        60_000,
        60_000,
    )

    def decoded(*_: object) -> NoReturn:
        raise AssertionError("its pixels were decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    monkeypatch.setattr("fastget.data.check.worker.jpeg_warning", decoded)
    for problem in (look_at_ends(file), inspect(file)):
        assert problem
        assert problem.kind == "too large"
    for read in (lambda: read_image(file, 8), lambda: read_sound(file)):
        with pytest.raises(BadImage) as error:
            read()
        assert error.value.kind == "too large"


def test_the_field_reaches_the_check_the_cache_and_the_pack(tmp_path: Path) -> None:
    root = write_domains(tmp_path / "data", per_class=1)
    photograph().save(root / "photo" / "ant" / "large.jpg")
    data = DataConfig(name="folder", root=str(root), source="photo", target="sketch", max_pixels=2000)
    with pytest.raises(ValueError, match=r"large\.jpg has 300 x 220 pixels, over data\.max_pixels=2000"):
        load_domains(data)
    assert load_domains(DataConfig(name="folder", root=str(root), source="photo", target="sketch")).left_out == []
    with pytest.raises(ValueError, match=r"large\.jpg"):  # what another limit found is not believed
        load_domains(data)
    images = image_list(root / "photo" / "ant", ["000.png", "large.jpg"])
    made = pack(images, tmp_path / "cache", Encoding("raw", 8), max_pixels=2000)
    assert [(Path(bad.path).name, bad.kind) for bad in made.bad] == [("large.jpg", "too large")]


def test_a_limit_above_pils_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    photograph().save(tmp_path / "a.png")
    assert read_image(str(tmp_path / "a.png"), 8, max_pixels=10**6).size == (8, 8)


def test_sixteen_bits_by_bands_are_what_they_were_at_once() -> None:
    levels = np.random.default_rng(0).integers(0, 2**16, (600, 5), dtype=np.uint16)
    expected = np.clip(np.rint(levels.astype(np.float64) / 257), 0, 255).astype(np.uint8)
    assert np.array_equal(np.asarray(to_rgb(Image.fromarray(levels)))[..., 0], expected)


# --- what is no file, no text, no fault of the file ----------------------------------------------


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe.jpg")
    os.mkfifo(pipe)
    for read in (lambda: read_image(pipe, 8), lambda: read_sound(pipe)):
        with pytest.raises(BadImage) as error:
            read()
        assert error.value.kind == "not a file"
    assert inspect(pipe)


def test_a_name_that_is_not_utf8_is_told_and_left_out(tmp_path: Path) -> None:
    root = write_domains(tmp_path, per_class=1)
    place = os.fsencode(root / "sketch" / "ant")
    os.rename(place + b"/000.png", place + b"/caf\xe9.png")
    data = {"name": "folder", "root": str(root), "source": "photo", "target": "sketch"}
    with pytest.raises(ValueError, match=r"name that is not UTF-8 text \(sketch/ant/caf\\xe9\.png\): rename it"):
        load_domains(DataConfig(**data))  # type: ignore[arg-type]
    domains = load_domains(DataConfig(**data, bad_images="skip"))  # type: ignore[arg-type]
    assert [problem.kind for problem in domains.left_out] == ["name"]
    assert len(domains.target) == 2


def test_no_more_open_files_is_no_fault_of_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photograph().save(tmp_path / "a.jpg")
    file = str(tmp_path / "a.jpg")

    def refused(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("builtins.open", refused)
    monkeypatch.setattr("os.open", refused)
    for read in (lambda: look_at_ends(file), lambda: read_image(file, 8), lambda: read_sound(file)):
        with pytest.raises(RunFailed, match="ulimit -n"):
            read()


def test_a_tiff_on_which_pil_raises_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photograph().save(tmp_path / "a.tif")

    def broken(*_: object) -> NoReturn:
        raise TypeError("'NoneType' object is not subscriptable")

    monkeypatch.setattr("PIL.TiffImagePlugin.TiffImageFile.load", broken)
    report = check([str(tmp_path / "a.tif")], full=True)
    assert [problem.kind for problem in report.bad] == ["corrupt"]
    with pytest.raises(BadImage):
        read_image(str(tmp_path / "a.tif"), 8)


def test_two_classes_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"two classes have one name \(cat\)"):
        ImageList("x", tmp_path, ["a", "b"], np.array([0, 1]), ("cat", "cat"))
    assert Remembered.file() != Remembered.file(5)
