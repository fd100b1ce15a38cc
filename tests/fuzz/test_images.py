"""Damaged images: each is read or named as bad, by every reader, and the check and the loaders never end otherwise."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from fastget.data.check.worker import inspect
from fastget.data.decode import BadImage, look_at_ends, read_image, read_sound
from fastget.data.formats import FORMATS, SUFFIXES
from tests.fuzz.mutations import mutations
from tests.pictures import photograph

LIMIT = 1_000_000  # pixels: a header that was damaged may tell of billions


def encoded(kind: str) -> bytes:
    out = io.BytesIO()
    photograph().resize((40, 30)).save(out, kind)
    return out.getvalue()


def read_all(data: bytes, file: Path) -> None:
    """Whether all agree that it can be read, or cannot; anything else than BadImage is raised."""
    file.write_bytes(data)
    readable = []
    for read in (lambda: read_image(str(file), 16, max_pixels=LIMIT), lambda: read_sound(str(file), LIMIT)):
        try:
            read()
            readable.append(True)
        except BadImage as error:
            readable.append(not error.reason)
    quick, full = look_at_ends(str(file), LIMIT), inspect(str(file), LIMIT)
    if readable[0] is False:
        assert full is not None  # what a loader refuses, a full check has named
    if quick is not None and quick.bad and file.suffix != ".png":  # whose checksums a check looks at, and no loader
        assert not readable[0], quick  # what the quick check refuses, no loader would have read


@pytest.mark.filterwarnings("ignore")  # PIL's, of odd files
@pytest.mark.parametrize("count", [400, 5000])
@pytest.mark.parametrize("kind", FORMATS)
def test_images(kind: str, count: int, tmp_path: Path) -> None:
    for data in mutations(encoded(kind), count, seed=count):
        read_all(data, tmp_path / f"a{SUFFIXES[kind][0]}")
