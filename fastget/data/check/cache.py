"""What earlier checks found, by (path, size, mtime): columns of numbers, since a data set may have 600,000 files.

A row says how a file was checked (`QUICK` or `FULL`); the few files with a problem have its words beside it. The file
lies in the user's cache directory and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import platformdirs
from numpy.typing import NDArray

from fastget.common.files import DamagedTable, path_keys, read_table, rows_of, write_table
from fastget.data.decode import MAX_PIXELS, Problem

QUICK, FULL = 1, 2
PASSING = ("no permission", "unreadable", "directory", "not a file")  # kinds that depend on more than the content
VERSION = "check-3"  # another file whenever the meaning of a result changes
RESULT = np.dtype([("key", "u8"), ("file_size", "i8"), ("mtime", "i8"), ("level", "u1")])


class Remembered:
    """The remembered results."""

    def __init__(self, max_pixels: int = MAX_PIXELS) -> None:
        """From the file; nothing if there is none, or it is damaged."""
        self._place = self.file(max_pixels)
        self._rows = np.empty(0, RESULT)
        self._words: dict[str, list[str]] = {}  # key -> [kind, reason]
        self.damage = ""  # in words, if what was there could not be used
        with contextlib.suppress(FileNotFoundError):
            try:
                words, rows = read_table(self._place, RESULT)
                if not _are_words(words):
                    raise DamagedTable(f"{self._place} is damaged (it holds something else)")
                self._rows, self._words = rows, words
            except DamagedTable as error:
                self.damage = f"what earlier checks found is lost, since {error}: all is looked at anew"

    @staticmethod
    def file(max_pixels: int = MAX_PIXELS) -> Path:
        """Results under another limit of pixels are others: they have a file of their own."""
        limit = "" if max_pixels == MAX_PIXELS else f"-{max_pixels}"
        return Path(platformdirs.user_cache_dir("fastget")) / f"{VERSION}{limit}.npz"

    def look_up(
        self, files: Sequence[str], stats: NDArray[np.int64], level: int, found: dict[int, Problem]
    ) -> NDArray[np.bool_]:
        """(N,) which files are known, unchanged and checked at this level or above; their problems go to `found`."""
        if not len(self._rows):
            return np.zeros(len(files), dtype=bool)
        keys = _keys(files)
        at, _, same = rows_of(self._rows, keys, stats)
        known = same & (self._rows["level"][at] >= level)
        # A problem that a quick look found is one for a full check too.
        words = np.fromiter(map(int, self._words), dtype=np.uint64, count=len(self._words))
        for i in np.flatnonzero(same & np.isin(keys, words)).tolist():
            kind, reason = self._words[str(keys[i])]
            problem = Problem(files[i], kind, reason)
            if known[i] or problem.bad:
                found[i] = problem
                known[i] = True
        return np.asarray(known, dtype=bool)

    def add(
        self,
        files: Sequence[str],
        stats: NDArray[np.int64],
        index: NDArray[np.int64],
        level: int,
        found: dict[int, Problem],
    ) -> None:
        """Remember the results of the files at `index`, but for those that may pass."""
        index = np.array([i for i in index.tolist() if i not in found or found[i].kind not in PASSING], dtype=np.int64)
        if not len(index):
            return
        keys = _keys([files[i] for i in index])
        new = np.empty(len(index), RESULT)
        new["key"], new["file_size"], new["mtime"], new["level"] = keys, stats[index, 0], stats[index, 1], level
        old = self._rows[~np.isin(self._rows["key"], keys)]
        self._rows = np.sort(np.concatenate([old, new]), order="key")
        self._words = {key: words for key, words in self._words.items() if np.uint64(key) not in keys}
        for i, key in zip(index.tolist(), keys.tolist(), strict=True):
            if i in found:
                self._words[str(key)] = [found[i].kind, found[i].reason]

    def save(self) -> None:
        """Whole or not at all; a cache directory that cannot be written costs time only, so that is no error."""
        with contextlib.suppress(OSError):
            self._place.parent.mkdir(parents=True, exist_ok=True)
            write_table(self._place, self._rows, self._words)


def _are_words(words: object) -> bool:
    """Whether they are problems by the hash of a path."""
    return isinstance(words, dict) and all(
        key.isdecimal() and int(key) < 2**64 and isinstance(said, list) and [type(word) for word in said] == [str, str]
        for key, said in words.items()
    )


def _keys(files: Sequence[str]) -> NDArray[np.uint64]:
    """(N,) of the absolute paths: results are remembered wherever a check is started."""
    here = os.path.join(os.getcwd(), "")
    return path_keys([file if file.startswith("/") else here + file for file in files])
