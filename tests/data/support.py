"""What the tests of the data share: a configuration of two folders, a file that a reader refuses."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fastget.config import DataConfig
from fastget.data.decode import BadImage, Problem
from tests.pictures import pixels


def on_folders(root: Path, **fields: Any) -> DataConfig:
    """From photo to sketch."""
    return DataConfig(**{"name": "folder", "root": str(root), "source": "photo", "target": "sketch", **fields})


def save(*files: Path) -> None:
    """A small picture each, another one every time."""
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(number)).save(file)


def kinds(problems: Iterable[Problem]) -> dict[str, str]:
    return {os.path.basename(problem.path): problem.kind for problem in problems}


def refused(read: Callable[[], object]) -> str:
    """The kind of what is wrong with the file that is read."""
    with pytest.raises(BadImage) as error:
        read()
    assert error.value.path in str(error.value)
    return error.value.kind


def claim(file: Path, width: int, height: int) -> str:
    """Makes a JPEG or PNG tell of another size than it has."""
    data = bytearray(file.read_bytes())
    if file.suffix == ".png":
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    else:
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    file.write_bytes(data)
    return str(file)
