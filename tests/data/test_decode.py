"""One file: libjpeg's exact pixels, and files that are made to harm: of many pixels, pipes, names that are no text."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fastget.common.errors import RunFailed
from fastget.data.check.cache import Remembered
from fastget.data.check.files import check
from fastget.data.check.worker import inspect
from fastget.data.decode import (
    BadImage,
    Problem,
    decode_jpeg,
    jpeg_warning,
    look_at_ends,
    read_image,
    read_sound,
    to_rgb,
)
from fastget.data.domains import load_domains
from fastget.data.formats import size_told
from fastget.data.lists import ImageList
from fastget.data.packed.read import Encoding
from fastget.data.packed.write import pack
from tests.data.support import claim, kinds, on_folders, refused
from tests.pictures import image_list, photograph, write_damage, write_domains

LIMIT = 300 * 220 - 1  # one less than the photograph has


def kind_of(problem: Problem | None) -> str | None:
    return None if problem is None else problem.kind


# --- JPEGs by libjpeg-turbo's own interface ------------------------------------------------------

KINDS: list[dict[str, Any]] = [
    {"subsampling": 0},
    {"subsampling": 1},
    {"subsampling": 2},
    {"subsampling": 2, "progressive": True},
    {"quality": 30, "optimize": True},
    {"restart_marker_rows": 1},
    {"keep_rgb": True, "subsampling": 0},
]


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def decoded(data: bytes) -> NDArray[np.uint8]:
    """Of a read-only array, as a record of the packed cache may be."""
    return decode_jpeg(np.frombuffer(data, dtype=np.uint8))


def by_pil(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (16, 16), (31, 200), (255, 129)], ids=str)
def test_the_pixels_are_those_of_pil_to_the_bit(size: tuple[int, int], mode: str) -> None:
    image = photograph().resize(size).convert(mode)
    for options in KINDS:
        data = encode(image, **options)
        assert np.array_equal(decoded(data), by_pil(data)), options
        assert jpeg_warning(data) is None, options


def test_what_simplejpeg_does_not_take_is_decoded_by_pil() -> None:
    png = encode(photograph(), "PNG")
    assert np.array_equal(decoded(png), np.asarray(photograph()))
    assert jpeg_warning(png) == ""
    four_colours = encode(photograph().convert("CMYK"), quality=95)
    assert np.abs(decoded(four_colours) - by_pil(four_colours).astype(int)).max() <= 1
    assert jpeg_warning(four_colours) is None


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_damage_that_libjpeg_decodes_over_is_heard(mode: str) -> None:
    data = encode(photograph().convert(mode), quality=90)
    middle = len(data) // 2
    damaged = data[:middle] + bytes(64) + data[middle + 64 :]
    by_pil(damaged)  # PIL is silent about it
    assert "Corrupt JPEG data" in (jpeg_warning(damaged) or "")
    scan = data.index(b"\xff\xda")
    assert "extraneous bytes" in (jpeg_warning(data[:scan] + bytes(16) + data[scan:]) or "")  # between its segments


# --- what the loaders refuse, and make sound -----------------------------------------------------


@pytest.mark.parametrize(
    "name", ["empty.jpg", "text.jpg", "gif.jpg", "header_only.jpg", "half.png", "gone.jpg", "directory.jpg"]
)
def test_the_loaders_refuse_what_the_check_refuses(tmp_path: Path, name: str) -> None:
    damage, file = write_damage(tmp_path), str(tmp_path / name)
    assert refused(lambda: read_sound(file)) == refused(lambda: read_image(file, 32)) == damage[name]


def test_trailing_bytes_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(encode(photograph()) + b"x" * 200)
    assert look_at_ends(str(file)) is None
    assert read_sound(str(file)).endswith(b"x" * 200)


def test_png_with_a_wrong_chunk_length_is_made_sound(tmp_path: Path) -> None:
    """PIL reads it, so training does; DALI's parser might crash on it, so it gets the same pixels in another file."""
    white = Image.new("RGB", (9, 9), "white")
    data = bytearray(encode(white, "PNG"))
    data[33] = 0x7F  # the length of the chunk after the header
    (tmp_path / "a.png").write_bytes(data)
    made = read_sound(str(tmp_path / "a.png"))
    assert made != bytes(data)
    assert np.array_equal(by_pil(made), np.asarray(white))


def test_sixteen_bits_by_bands_are_what_they_were_at_once() -> None:
    levels = np.random.default_rng(0).integers(0, 2**16, (600, 5), dtype=np.uint16)
    expected = np.clip(np.rint(levels.astype(np.float64) / 257), 0, 255).astype(np.uint8)
    assert np.array_equal(np.asarray(to_rgb(Image.fromarray(levels)))[..., 0], expected)


# --- many pixels in few bytes --------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "webp", "tif", "ppm", "jp2"])
def test_one_limit_for_every_reader(tmp_path: Path, suffix: str) -> None:
    file = str(tmp_path / f"a.{suffix}")
    photograph().save(file)
    for read in (lambda n: read_image(file, 8, max_pixels=n), lambda n: read_sound(file, n)):
        assert read(LIMIT + 1)
        with pytest.raises(BadImage, match=r"300 x 220 pixels, over data\.max_pixels=65999") as error:
            read(LIMIT)
        assert error.value.kind == "too large"
    for look in (look_at_ends, inspect):
        assert (look(file, LIMIT + 1), kind_of(look(file, LIMIT))) == (None, "too large")


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_a_bomb_is_not_decoded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photograph().save(tmp_path / name)
    file = claim(tmp_path / name, 60_000, 60_000)
    assert size_told("PNG" if name == "a.png" else "JPEG", Path(file).read_bytes()) == (60_000, 60_000)

    def decoded(*_: object) -> NoReturn:
        raise AssertionError("its pixels were decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    monkeypatch.setattr("fastget.data.check.worker.jpeg_warning", decoded)
    assert kind_of(look_at_ends(file)) == kind_of(inspect(file)) == "too large"
    assert refused(lambda: read_image(file, 8)) == refused(lambda: read_sound(file)) == "too large"


def test_the_field_reaches_the_check_the_cache_and_the_pack(tmp_path: Path) -> None:
    root = write_domains(tmp_path / "data", per_class=1)
    photograph().save(root / "photo" / "ant" / "large.jpg")
    with pytest.raises(ValueError, match=r"large\.jpg has 300 x 220 pixels, over data\.max_pixels=2000"):
        load_domains(on_folders(root, max_pixels=2000))
    assert load_domains(on_folders(root)).left_out == []
    with pytest.raises(ValueError, match=r"large\.jpg"):  # what another limit found is not believed
        load_domains(on_folders(root, max_pixels=2000))
    images = image_list(root / "photo" / "ant", ["000.png", "large.jpg"])
    assert kinds(pack(images, tmp_path / "cache", Encoding("raw", 8), max_pixels=2000).bad) == {
        "large.jpg": "too large"
    }
    assert Remembered.file() != Remembered.file(5)


def test_a_limit_above_pils_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    photograph().save(tmp_path / "a.png")
    assert read_image(str(tmp_path / "a.png"), 8, max_pixels=10**6).size == (8, 8)


# --- what is no file, no text, no fault of the file ----------------------------------------------


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe.jpg")
    os.mkfifo(pipe)
    assert refused(lambda: read_image(pipe, 8)) == refused(lambda: read_sound(pipe)) == "not a file"
    assert inspect(pipe)


def test_a_name_that_is_not_utf8_is_told_and_left_out(tmp_path: Path) -> None:
    root = write_domains(tmp_path, per_class=1)
    place = os.fsencode(root / "sketch" / "ant")
    os.rename(place + b"/000.png", place + b"/caf\xe9.png")
    with pytest.raises(ValueError, match=r"name that is not UTF-8 text \(sketch/ant/caf\\xe9\.png\): rename it"):
        load_domains(on_folders(root))
    domains = load_domains(on_folders(root, bad_images="skip"))
    assert [problem.kind for problem in domains.left_out] == ["name"]
    assert len(domains.target) == 2


def test_no_more_open_files_is_no_fault_of_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photograph().save(tmp_path / "a.jpg")
    file = str(tmp_path / "a.jpg")

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("os.open", refuse)
    for read in (lambda: look_at_ends(file), lambda: read_image(file, 8), lambda: read_sound(file)):
        with pytest.raises(RunFailed, match="ulimit -n"):
            read()


def test_a_tiff_on_which_pil_raises_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "a.tif")
    photograph().save(file)

    def broken(*_: object) -> NoReturn:
        raise TypeError("'NoneType' object is not subscriptable")

    assert check([file], full=True, again=True).bad == []
    monkeypatch.setattr("PIL.TiffImagePlugin.TiffImageFile.load", broken)
    assert kind_of(inspect(file)) == refused(lambda: read_image(file, 8)) == "corrupt"


def test_two_classes_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"two classes have one name \(cat\)"):
        ImageList("x", tmp_path, ["a", "b"], np.array([0, 1]), ("cat", "cat"))
