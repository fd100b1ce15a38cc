"""The files of a stream that could not be read in mid-run, and when they are too many."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from fastget.common.text import and_more
from fastget.data.decode import BadImage
from fastget.data.lists import ImageList

ATTEMPTS = 100  # stand-ins tried for one bad image


@dataclass(frozen=True)
class BadFile:
    """A file that could not be read in mid-run. A training batch has another image in its place; evaluation none."""

    path: str
    reason: str
    step: int  # whose batch it was first missed in


class TooManyBadImages(ValueError):
    """More files of a stream turned bad than data.bad_threshold allows."""

    def __init__(self, name: str, files: list[BadFile], length: int, threshold: float) -> None:
        self.files = files
        first = and_more([f"{bad.path} ({bad.reason})" for bad in files], 3)
        super().__init__(
            f"{len(files):,} of the {length:,} images of {name} cannot be read any more, over data.bad_threshold="
            f"{threshold:g}: {first}. Is the disk still there? Run `fastget data check`"
        )


class BadFiles:
    """The files of a list that turned out bad while it was read; safe to use from several threads."""

    def __init__(self, images: ImageList, threshold: float) -> None:
        self._images, self._threshold = images, threshold
        self._most = max(1, int(threshold * len(images))) if threshold else 0  # one file never ends a run
        self._files: dict[int, BadFile] = {}  # by their place in the list
        self._told = 0
        self._lock = threading.Lock()

    def __contains__(self, index: int) -> bool:
        return index in self._files

    def __len__(self) -> int:
        return len(self._files)

    @property
    def files(self) -> list[BadFile]:
        """All of them so far."""
        with self._lock:
            return list(self._files.values())

    def add(self, index: int, step: int, error: BadImage) -> None:
        """Note a file. Raises TooManyBadImages when there are too many."""
        with self._lock:
            self._files.setdefault(index, BadFile(error.path, error.reason, step))
            if len(self._files) > self._most:
                raise self.too_many()

    def too_many(self) -> TooManyBadImages:
        return TooManyBadImages(self._images.name, list(self._files.values()), len(self._images), self._threshold)

    def news(self) -> tuple[BadFile, ...]:
        """Those found since the last call."""
        with self._lock:
            new = tuple(self._files.values())[self._told :]
            self._told += len(new)
            return new
