"""What the packed cache holds of an image: every image of a data set, resized once, in a few large files.

A cache is a folder of WebDataset shards (plain tar files, one member an image: `.jpg`, or `.raw` for R x R x 3 uint8),
and an index of where each record begins, how long it is, its CRC-32, and the size and mtime of the file it was made
from. Any tool that reads tar can read it. fastget maps the shards into memory and goes straight to a record, since
tar's own readers only go through a shard from front to back, and a batch must be a pure function of its step.

Measured (benchmarks/bench_loader.md; CPU-ms an image, 500 px photographs): the memory map 0.24 raw and 0.58 JPEG,
DALI's `fn.readers.webdataset` on the same shards 0.30 and 0.74, ATDOC's loader from files 3.9.

Every record is checked by its CRC when it is read (0.04 ms for a raw one). A record that fails is read from its own
file in place, so that a damaged cache costs time, not pixels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import threading
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastget.common.choices import Interpolation
from fastget.common.files import path_keys, read_table, rows_of, sizes_and_times
from fastget.common.text import and_more
from fastget.data.decode import decode_jpeg
from fastget.data.lists import ImageList

Format = Literal["jpeg", "raw"]
FOLDER = ".fastget-packed"  # in the data set's root
VERSION = 1
WORTH_PACKING = 5000  # images


@dataclass(frozen=True)
class Encoding:
    """How an image becomes a record."""

    format: Format
    resize: int
    quality: int = 90  # JPEG's: two to three levels from the pixels on average
    interpolation: Interpolation = "bilinear"

    @property
    def folder_name(self) -> str:
        """Of each size and interpolation a folder of its own: one data set may serve several backbones."""
        other = "" if self.interpolation == "bilinear" else f"-{self.interpolation}"
        return f"{self.format}-{self.resize}{other}"

    @property
    def recipe(self) -> dict[str, Any]:
        """As the index keeps it. Bilinear goes without saying, as it did when there was no other."""
        plain = dataclasses.asdict(self)
        return {name: value for name, value in plain.items() if value != "bilinear"}

    @property
    def resizing(self) -> tuple[int, Interpolation]:
        """What a backbone must want for its records to be of use."""
        return self.resize, self.interpolation

    def encode(self, square: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The bytes of a record. JPEG halves the colours' resolution, as cameras do: a quarter faster to decode."""
        if self.format == "raw":
            return np.ascontiguousarray(square).reshape(-1)
        out = io.BytesIO()
        Image.fromarray(square).save(out, "JPEG", quality=self.quality, subsampling=2)
        return np.frombuffer(out.getvalue(), dtype=np.uint8)


RECORD = np.dtype(
    [
        ("key", "u8"),  # of the path
        ("shard", "u4"),
        ("offset", "u8"),
        ("size", "u4"),  # 0: the file was bad when it was packed
        ("crc", "u4"),
        ("file_size", "i8"),
        ("mtime", "i8"),
    ]
)


def cache_folder(root: Path, where: str, encoding: Encoding) -> Path:
    """Where the cache of a root lies: in the root itself (`auto`), or in the folder `where`."""
    if where == "auto":
        return root / FOLDER / encoding.folder_name
    digest = hashlib.blake2b(os.fsencode(os.path.realpath(root)), digest_size=6).hexdigest()
    return Path(where) / f"{digest}-{encoding.folder_name}"


@dataclass(frozen=True)
class Cache:
    """A complete cache on disk."""

    folder: Path
    encoding: Encoding
    shards: tuple[str, ...]
    records: NDArray[np.void]  # sorted by key

    @classmethod
    def open(cls, folder: Path) -> Cache | None:
        """The cache, or none if there is no complete one. What a damaged index says is not believed."""
        try:
            about, records = read_table(folder / "index.npz", RECORD)
            sizes, encoding = about["shards"], Encoding(**about["recipe"])
            if about["version"] != VERSION or sizes != {name: (folder / name).stat().st_size for name in sizes}:
                return None
            _refuse_impossible(records, encoding, len(sizes))
        except (OSError, KeyError, TypeError, ValueError, AttributeError):
            return None
        return cls(folder, encoding, tuple(sizes), records)

    def find(self, images: ImageList) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(N,) each image's record, -1 if it has none; (N,) whether its file is as it was when it was packed."""
        stats = sizes_and_times(images.files())
        at, there, fresh = rows_of(self.records, path_keys(images.paths), stats)
        return np.where(there & (self.records["size"][at] > 0), at, -1), fresh


def _refuse_impossible(records: NDArray[np.void], encoding: Encoding, shards: int) -> None:
    """ValueError for records that no packing writes."""
    if encoding.format not in ("raw", "jpeg") or not isinstance(encoding.resize, int):
        raise ValueError("an unknown encoding")
    if len(records) and int(records["shard"].max()) >= shards:
        raise ValueError("a record in no shard")
    if encoding.format == "raw" and not np.isin(records["size"], (0, 3 * encoding.resize**2)).all():
        raise ValueError("a record of another size")


class Packed:
    """The records of a list's images in a cache."""

    def __init__(self, cache: Cache, records: NDArray[np.int64]) -> None:
        self.cache = cache
        self.format, self.resize = cache.encoding.format, cache.encoding.resize
        self._records = records
        self._maps: dict[int, NDArray[np.uint8]] = {}
        self._lock = threading.Lock()
        self.damaged: set[int] = set()  # places in the list whose record failed its checksum

    def encoded(self, index: int) -> NDArray[np.uint8] | None:
        """The bytes of an image's record; none if there is no whole one."""
        at = int(self._records[index])
        if at < 0:
            return None
        record = self.cache.records[at]
        shard, offset, size = int(record["shard"]), int(record["offset"]), int(record["size"])
        data = self._map(shard)[offset : offset + size]
        if zlib.crc32(data.data) != record["crc"]:
            self._warn(index, shard)
            return None
        return data

    def read(self, index: int) -> NDArray[np.uint8] | None:
        """(R, R, 3) an image's pixels; none if there is no whole record."""
        data = self.encoded(index)
        if data is None:
            return None
        if self.format == "raw":
            return data.reshape(self.resize, self.resize, 3)
        return decode_jpeg(data)

    def _map(self, shard: int) -> NDArray[np.uint8]:
        found = self._maps.get(shard)
        if found is None:
            # copy-on-write, so that torch takes it without a warning; nobody writes to it
            found = np.asarray(np.memmap(self.cache.folder / self.cache.shards[shard], dtype=np.uint8, mode="c"))
            self._maps[shard] = found
        return found

    def _warn(self, index: int, shard: int) -> None:
        with self._lock:
            first = not self.damaged
            self.damaged.add(index)
        if first:
            warnings.warn(
                f"the packed cache is damaged: a checksum in {self.cache.folder / self.cache.shards[shard]} is wrong. "
                "Such images are read from their own files; `fastget data pack` repairs the cache",
                stacklevel=3,
            )


def find_packed(
    images: ImageList, where: str, resize: int, interpolation: Interpolation = "bilinear"
) -> tuple[Packed | None, str]:
    """The cache of a list, raw before JPEG, if it is complete and fresh; and a line about it for people."""
    if where == "off":
        return None, "the packed cache is off (data.cache=off)"
    formats: tuple[Format, ...] = ("raw", "jpeg")
    # a small list gains little from one
    note = f"{images.name}: no packed cache (`fastget data pack` makes one)" if len(images) >= WORTH_PACKING else ""
    if where != "auto":  # it was asked for
        note = f"{images.name}: no packed cache of it in data.cache={where} (`fastget data pack --cache` makes one)"
    if others := _others(images, where, (resize, interpolation)):
        note = (
            f"{images.name}: no packed cache of {resize} pixels, {interpolation}, as this backbone wants them; there "
            f"is {and_more(others, 3)}. `fastget data pack --resize {resize} --interpolation {interpolation}` makes one"
        )
    for format in formats:
        folder = cache_folder(images.root, where, Encoding(format, resize, interpolation=interpolation))
        cache = Cache.open(folder)
        if cache is None and (folder / "index.npz").exists():
            note = (
                f"{images.name}: the packed cache {folder} is damaged, incomplete or of another version, and is not "
                "used; `fastget data pack` makes it anew"
            )
        if cache is None or not len(cache.records):
            continue
        records, fresh = cache.find(images)
        if fresh.all():
            return Packed(cache, records), f"{images.name}: packed cache {folder}"
        changed = int((~fresh).sum())
        note = (
            f"{images.name}: the packed cache {folder} is not used, since {changed:,} of {len(images):,} files are new "
            "or changed; `fastget data pack` brings it up to date"
        )
    return None, note


def _others(images: ImageList, where: str, wanted: tuple[int, Interpolation]) -> list[str]:
    """The folders of a root's caches that were resized otherwise."""
    some = cache_folder(images.root, where, Encoding("raw", 1))
    caches = (Cache.open(index.parent) for index in some.parent.glob(f"{some.name.removesuffix('raw-1')}*/index.npz"))
    return sorted(cache.folder.name for cache in caches if cache is not None and cache.encoding.resizing != wanted)
