"""Files: written whole or not at all, told apart by a hash of their path, known again by their size and time."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastget.common.text import csv_cell

CHUNK = 256  # files that a thread takes at a time

# --- writing -------------------------------------------------------------------------------------


@contextmanager
def made_whole(place: Path) -> Iterator[Path]:
    """A path beside `place` to make a file or a folder at; it gets the name `place` if the block ends without an error.

    Flushed to disk, then renamed: the name holds the old content or the new, never a part of it. Each caller has a path
    of its own, with the suffix of `place`, and what a killed one leaves behind matches `.*.part*`.
    """
    making = place.with_name(f".{place.stem}.{secrets.token_hex(4)}.part{place.suffix}")
    try:
        yield making
        _flush(making)
        os.replace(making, place)
    finally:
        if making.is_dir():
            shutil.rmtree(making, ignore_errors=True)
        else:
            making.unlink(missing_ok=True)
    _flush(place.parent)


def write_atomically(file: Path, content: bytes) -> None:
    """The name holds the old content or the new, never a part."""
    with made_whole(file) as making:
        making.write_bytes(content)


@contextmanager
def writing(place: Path, fix: str = "choose another place by --out") -> Iterator[None]:
    """What cannot be written in here is a mistake of who chose the place: ValueError with the fix."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot write {place}: {error.strerror or error}; {fix}") from error


def write_csv(file: Path, rows: Iterable[Iterable[object]]) -> None:
    """The head is the first row. No cell is a formula for a spreadsheet, and what is no UTF-8 is escaped."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(csv_cell, row) for row in rows)
    write_atomically(file, text.getvalue().encode(errors="backslashreplace"))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- telling files apart -------------------------------------------------------------------------


def path_keys(paths: Sequence[str], salt: str = "") -> NDArray[np.uint64]:
    """(N,) a hash of each path, after the salt. Caches are found by it and splits drawn by it: it never changes."""

    def key(path: str) -> int:
        text = (salt + path).encode("utf-8", "surrogateescape")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    return np.fromiter(map(key, paths), dtype=np.uint64, count=len(paths))


def sizes_and_times(files: Sequence[str], workers: int = 0) -> NDArray[np.int64]:
    """(N, 2) size and mtime in nanoseconds of each file; -1 where there is none."""
    out = np.full((len(files), 2), -1, dtype=np.int64)

    def look(start: int) -> None:
        for i, file in enumerate(files[start : start + CHUNK], start):
            try:
                info = os.stat(file)
            except OSError:
                continue
            out[i] = info.st_size, info.st_mtime_ns

    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for _ in pool.map(look, range(0, len(files), CHUNK)):
            continue  # waits, and raises what it raised
    return out


# --- tables of files -------------------------------------------------------------------------------


class DamagedTable(ValueError):
    """A table that cannot be read as one."""


def write_table(file: Path, records: NDArray[np.void], about: object) -> None:
    """Records with `key`, `file_size` and `mtime` of a file, sorted by key; and what is to be said of them."""
    with made_whole(file) as making:
        np.savez(making, records=records, about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8))


def read_table(file: Path, dtype: np.dtype[np.void]) -> tuple[dict[str, Any], NDArray[np.void]]:
    """What a table says of itself, and its records. FileNotFoundError without one; DamagedTable."""
    try:
        with np.load(file) as saved:
            about, records = json.loads(bytes(saved["about"])), saved["records"]
        if not isinstance(about, dict) or records.dtype != dtype or records.ndim != 1:
            raise ValueError("it holds something else")
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged file makes numpy and zipfile raise almost anything
        raise DamagedTable(f"{file} is damaged ({error})") from error
    return about, records


def rows_of(
    records: NDArray[np.void], keys: NDArray[np.uint64], stats: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """(N,) where in a table that is not empty each file's record would be, whether it is, and whether it is of the file
    as it is now."""
    at = np.minimum(np.searchsorted(records["key"], keys), len(records) - 1)
    rows = records[at]
    there = rows["key"] == keys
    return at, there, there & (rows["file_size"] == stats[:, 0]) & (rows["mtime"] == stats[:, 1])
