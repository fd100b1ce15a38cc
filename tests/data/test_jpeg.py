"""JPEGs: libjpeg's exact pixels from every kind, and its warnings heard."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fastget.data.decode import decode_jpeg, jpeg_warning
from tests.pictures import photograph

SIZES = [(1, 1), (7, 5), (16, 16), (31, 200), (255, 129)]
KINDS: list[dict[str, Any]] = [
    {"subsampling": 0},
    {"subsampling": 1},
    {"subsampling": 2},
    {"subsampling": 2, "progressive": True},
    {"quality": 30, "optimize": True},
    {"restart_marker_rows": 1},
    {"keep_rgb": True, "subsampling": 0},
]


def encode(image: Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def array(data: bytes) -> NDArray[np.uint8]:
    """Read-only, as a record of the packed cache may be."""
    return np.frombuffer(data, dtype=np.uint8)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_pixels_are_those_of_pil_to_the_bit(size: tuple[int, int], mode: str) -> None:
    image = photograph().resize(size).convert(mode)
    for options in KINDS:
        data = encode(image, **options)
        wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        assert np.array_equal(decode_jpeg(array(data)), wanted), options
        assert jpeg_warning(data) is None, options


def test_what_simplejpeg_does_not_take_is_decoded_by_pil() -> None:
    png = io.BytesIO()
    photograph().save(png, "PNG")
    assert np.array_equal(decode_jpeg(array(png.getvalue())), np.asarray(photograph()))
    assert jpeg_warning(png.getvalue()) == ""


def test_four_colours_are_taken() -> None:
    data = encode(photograph().convert("CMYK"), quality=95)
    wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert np.abs(decode_jpeg(array(data)) - wanted).max() <= 1
    assert jpeg_warning(data) is None


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_damage_that_libjpeg_decodes_over_is_heard(mode: str) -> None:
    data = encode(photograph().convert(mode), quality=90)
    middle = len(data) // 2
    damaged = data[:middle] + bytes(64) + data[middle + 64 :]
    Image.open(io.BytesIO(damaged)).convert("RGB")  # PIL is silent about it
    assert "Corrupt JPEG data" in (jpeg_warning(damaged) or "")
    scan = data.index(b"\xff\xda")
    assert "extraneous bytes" in (jpeg_warning(data[:scan] + bytes(16) + data[scan:]) or "")  # between its segments
