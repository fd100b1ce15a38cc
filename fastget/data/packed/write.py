"""How the packed cache is made: decoded once, resized, stored in large shards, a whole shard or none of it.

A shard is written beside its place, read back and compared with its checksums, flushed to disk and renamed; then its
own index (`.npz`) is, which is what says that it is done. The index of the whole cache comes last. So a
packing that is killed leaves no cache, or finished shards that the next one keeps; and a shard that has been damaged
since is found by its checksums and written again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fastget.common.errors import RunFailed
from fastget.common.files import DamagedTable, made_whole, path_keys, read_table, sizes_and_times, write_table
from fastget.common.lock import Busy, held
from fastget.common.progress import Advance
from fastget.data.decode import MAX_PIXELS, BadImage, Problem, read_image
from fastget.data.lists import ImageList
from fastget.data.packed.read import RECORD, VERSION, Cache, Encoding

BLOCK = 512  # tar's
SHARD_BYTES = 256 << 20
JPEG_BYTES = 22_000  # a 256 x 256 photograph at quality 90, about


@dataclass(frozen=True)
class Packing:
    """What a packing did."""

    folder: Path
    images: int
    kept: int  # of those, how many were there already, and whole
    repaired: int  # images in shards whose checksums were wrong
    bytes: int
    bad: list[Problem] = field(default_factory=list)  # left out


def estimate(count: int, encoding: Encoding) -> int:
    """Bytes that a cache of `count` images will take."""
    pixels = encoding.resize**2
    each = 3 * pixels if encoding.format == "raw" else JPEG_BYTES * pixels // 256**2
    return count * (BLOCK + -(-each // BLOCK) * BLOCK)


def pack(
    images: ImageList,  # of any domains, under one root
    folder: Path,
    encoding: Encoding,
    *,
    workers: int = 0,
    shard_bytes: int = SHARD_BYTES,
    max_pixels: int = MAX_PIXELS,
    advance: Advance | None = None,
) -> Packing:
    """Make the cache, or bring it up to date. Raises ValueError if the disk is too small or cannot be written."""
    first = np.unique(path_keys(images.paths), return_index=True)[1]
    images = images.take(np.sort(first))  # every path once
    each = max(1, shard_bytes // estimate(1, encoding))
    plan = [images.take(np.arange(i, min(i + each, len(images)))) for i in range(0, len(images), each)]
    with _locked(folder), ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return _Packer(folder, encoding, pool, advance or (lambda _: None), max_pixels).run(plan)


def verify(cache: Cache, advance: Advance | None = None) -> list[str]:
    """The shards whose records do not match their checksums."""
    wrong = []
    for number, name in enumerate(cache.shards):
        records = cache.records[cache.records["shard"] == number]
        if _damaged(cache.folder / name, records):
            wrong.append(name)
        if advance:
            advance(len(records))
    return wrong


@dataclass
class _Packer:
    """One packing under way."""

    folder: Path
    encoding: Encoding
    pool: ThreadPoolExecutor
    advance: Advance
    max_pixels: int
    bad: list[Problem] = field(default_factory=list)

    def run(self, plan: list[ImageList]) -> Packing:
        for rest in self.folder.glob("*.part*"):
            rest.unlink()  # of a packing that was killed
        done = [self._finished(number, images) for number, images in enumerate(plan)]
        self._refuse_small_disk(sum(len(images) for images, r in zip(plan, done, strict=True) if r is None))
        kept = repaired = 0
        shards: list[NDArray[np.void]] = []
        for number, (images, records) in enumerate(zip(plan, done, strict=True)):
            if records is not None and not _damaged(self._shard(number), records):
                kept += len(images)
                self.bad += [
                    _bad_before(images, i, self.max_pixels) for i in np.flatnonzero(records["size"] == 0).tolist()
                ]
                self.advance(len(images))
            else:
                repaired += len(images) if records is not None else 0
                records = self._write(number, images)
            shards.append(records)
        size = self._write_index(shards)
        return Packing(self.folder, sum(map(len, plan)), kept, repaired, size, self.bad)

    def _shard(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.tar"

    def _refuse_small_disk(self, count: int) -> None:
        needed, free = estimate(count, self.encoding), shutil.disk_usage(self.folder).free
        if needed > free:
            raise ValueError(
                f"the cache needs about {needed / 1e9:.1f} GB more, and the disk of {self.folder} has "
                f"{free / 1e9:.1f} GB free: use --format jpeg, or another folder by --cache"
            )

    def _finished(self, number: int, images: ImageList) -> NDArray[np.void] | None:
        """The records of a shard that is done, and made of the same files by the same encoding."""
        try:
            about, records = read_table(self._shard(number).with_suffix(".npz"), RECORD)
        except (DamagedTable, FileNotFoundError):
            return None
        if about != self._about() or len(records) != len(images):
            return None
        stats = sizes_and_times(images.files())
        same = (records["file_size"] == stats[:, 0]) & (records["mtime"] == stats[:, 1])
        return records if bool((same & (records["key"] == path_keys(images.paths))).all()) else None

    def _write(self, number: int, images: ImageList) -> NDArray[np.void]:
        """Decode, write, read back, rename. Returns the shard's records, in the list's order."""
        target = self._shard(number)
        records = np.zeros(len(images), RECORD)
        records["key"], records["shard"] = path_keys(images.paths), number
        stats = sizes_and_times(images.files())  # before they are read: a file that then changes is stale, not wrong
        records["file_size"], records["mtime"] = stats[:, 0], stats[:, 1]
        with made_whole(target) as making:
            with making.open("wb") as file:
                self._write_records(file, number, images, records)
            if _damaged(making, records):
                raise ValueError(f"{making} does not read back as it was written: is the disk failing?")
            for stale in (self.folder / "index.npz", target.with_suffix(".npz")):
                stale.unlink(missing_ok=True)  # they tell of the shard that is replaced
        write_table(target.with_suffix(".npz"), records, self._about())
        return records

    def _write_records(self, file: BinaryIO, number: int, images: ImageList, records: NDArray[np.void]) -> None:
        """The images as members of a tar file; where each lies goes into its record."""
        for i, made in enumerate(self._encoded(images)):
            if isinstance(made, Problem):
                self.bad.append(made)
            else:
                member = tarfile.TarInfo(f"{number:05d}{i:06d}.{'jpg' if self.encoding.format == 'jpeg' else 'raw'}")
                member.size, member.mode = len(made), 0o644
                file.write(member.tobuf(tarfile.USTAR_FORMAT))
                record = records[i : i + 1]
                record["offset"], record["size"], record["crc"] = file.tell(), len(made), zlib.crc32(made.data)
                file.write(made.data)
                file.write(bytes(-len(made) % BLOCK))
            self.advance(1)
        file.write(bytes(2 * BLOCK))  # tar's end

    def _encoded(self, images: ImageList) -> Iterator[NDArray[np.uint8] | Problem]:
        """The images in order, some of them made ahead of the one that is written."""

        def make(i: int) -> NDArray[np.uint8] | Problem:
            try:
                square = read_image(images.file(i), *self.encoding.resizing, self.max_pixels)
                return self.encoding.encode(np.asarray(square))
            except BadImage as error:
                return error.problem

        waiting: list[Future[NDArray[np.uint8] | Problem]] = []
        for i in range(len(images)):
            waiting.append(self.pool.submit(make, i))
            if len(waiting) > 64:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()

    def _about(self) -> dict[str, Any]:
        return {"version": VERSION, "recipe": self.encoding.recipe}

    def _write_index(self, shards: list[NDArray[np.void]]) -> int:
        """The index of all shards, which makes the cache complete. Returns the cache's size in bytes."""
        files = [self._shard(number) for number in range(len(shards))]
        sizes = {file.name: file.stat().st_size for file in files}
        records = np.sort(np.concatenate(shards), order="key")
        write_table(self.folder / "index.npz", records, self._about() | {"shards": sizes})
        for old in self.folder.glob("shard-*"):
            if old.with_suffix(".tar") not in files:
                old.unlink()  # of a longer list
        return sum(sizes.values())


def _damaged(shard: Path, records: NDArray[np.void]) -> bool:
    """Whether any record differs from its checksum, or the shard has not the length that its records tell."""
    try:
        data = np.memmap(shard, dtype=np.uint8, mode="r")
    except (OSError, ValueError):
        return True
    end = max((offset + size for offset, size in records[["offset", "size"]].tolist()), default=0)
    if len(data) != -(-end // BLOCK) * BLOCK + 2 * BLOCK:
        return True
    for offset, size, crc in records[["offset", "size", "crc"]].tolist():
        if size and zlib.crc32(data[offset : offset + size].data) != crc:
            return True
    return False


def _bad_before(images: ImageList, i: int, max_pixels: int) -> Problem:
    """Why an image was left out of a shard that is kept."""
    try:
        read_image(images.file(i), 8, max_pixels=max_pixels)
    except BadImage as error:
        return error.problem
    return Problem(images.file(i), "undecodable", "could not be decoded when it was packed; touch it to try again")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One packing at a time; the lock goes with the process, however that ends. The disk may fill in mid-packing."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held(folder, way_out=f"removing {folder}/.lock*"))
        except Busy as error:
            raise ValueError(
                f"another `fastget data pack` is writing {folder}: wait for it to end ({error})"
            ) from error
        except OSError as error:
            raise ValueError(
                f"cannot write the packed cache to {folder}: {error.strerror}; choose another folder by --cache DIR, "
                "and give it to train as data.cache=DIR"
            ) from error
        try:
            yield
        except OSError as error:
            raise RunFailed(
                f"cannot write the packed cache to {folder} ({error.strerror or error}). The finished shards are kept: "
                "make room, then run the same command; or use --format jpeg, or another folder by --cache"
            ) from error
