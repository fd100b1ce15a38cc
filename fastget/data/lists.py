"""What a list of images is, and what a list file (`path label` lines) says."""

from __future__ import annotations

import os
import posixpath
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastget.common.text import and_more
from fastget.data.formats import IMAGE_SUFFIXES

UNLABELLED = -1
MAX_CLASSES = 100_000  # a label beyond this is a mistake, not a class


@dataclass(frozen=True)
class Unused:
    """A file, or a folder as a whole, that no list holds."""

    path: str  # relative to the root, as in a list
    reason: str


@dataclass(frozen=True)
class ImageList:
    """Images of one domain: where they lie and what they show."""

    name: str  # the domain, for people
    root: Path
    paths: Sequence[str]  # relative to root, or absolute
    labels: NDArray[np.int64]  # UNLABELLED where no label is known
    classes: tuple[str, ...]
    unused: tuple[Unused, ...] = ()  # files of the domain's folder that are not among them; a part of a list has none

    def __post_init__(self) -> None:
        if len(set(self.classes)) != len(self.classes):
            twice = sorted({name for name in self.classes if self.classes.count(name) > 1})
            raise ValueError(f"{self.name}: two classes have one name ({and_more(twice)}): give each its own")

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, index: int) -> str:
        """The path to open."""
        return os.path.join(self.root, self.paths[index])

    def files(self, root: str | None = None) -> list[str]:
        """All paths to open, under the list's root or another; much faster than one by one."""
        base = os.path.join(root or self.root, "")
        return [path if path.startswith("/") else base + path for path in self.paths]

    @property
    def labelled(self) -> bool:
        return bool((self.labels != UNLABELLED).all())

    def keep(self, mask: NDArray[np.bool_]) -> ImageList:
        """The images where `mask` is true."""
        return self.take(np.flatnonzero(mask))

    def take(self, index: NDArray[np.int64]) -> ImageList:
        """The images at these places, in this order."""
        paths = [self.paths[i] for i in index.tolist()]
        return ImageList(self.name, self.root, paths, self.labels[index], self.classes)

    def in_both(self, other: ImageList) -> NDArray[np.bool_]:
        """(N,) which images stand in the other list too, by the absolute path of the file that they are."""
        return np.isin(self._keys(), other._keys())

    def _keys(self) -> NDArray[np.int64]:
        """(N,) a number for each file, the same wherever it is listed; a set of all paths would be large."""
        files = self.files(os.path.abspath(self.root))
        clean = (
            posixpath.normpath(file) if "/../" in file or "//" in file or "/./" in file else file for file in files
        )
        return np.fromiter(map(hash, clean), dtype=np.int64, count=len(files))

    def shared_with(self, other: ImageList) -> list[str]:
        """The paths of the images that stand in the other list too."""
        return [self.paths[i] for i in np.flatnonzero(self.in_both(other)).tolist()]

    def counts(self) -> NDArray[np.int64]:
        """(C,) labelled images of each class."""
        return np.bincount(self.labels[self.labels != UNLABELLED], minlength=len(self.classes))


def merged(lists: Sequence[ImageList]) -> ImageList:
    """The images of several lists as one, without labels: what a packed cache is made of."""
    paths = [path for images in lists for path in images.paths]
    return ImageList(lists[0].name, lists[0].root, paths, np.full(len(paths), UNLABELLED), ())


# --- list files ----------------------------------------------------------------------------------


def read_list(
    file: str | Path, root: str | Path, *, unlabelled: bool = False, num_classes: int | None = None
) -> tuple[list[str], NDArray[np.int64]]:
    """Paths and labels of a list file. With `unlabelled`, a list whose lines hold a path alone is taken too.

    Paths are relative to `root`, or absolute. Raises ValueError with file and line for a label that isn't a class
    number or lies beyond `num_classes`, a path that leaves the root, and a path given twice with two labels.
    """
    file = Path(file)
    most = MAX_CLASSES if num_classes is None else num_classes
    paths: list[str] = []
    labels = array("q")
    for number, line in _lines(file):
        path, label = _split_line(line, file, number, unlabelled)
        if label >= most:
            raise ValueError(
                f"{file}, line {number}: class {label} is out of range: expected classes 0 to {most - 1:,}; "
                "remove the line, or correct its label"
            )
        paths.append(_inside(path, root, file, number))
        labels.append(label)
    if not paths:
        raise ValueError(f"{file} holds no image: expected lines of `path label`")
    found = np.array(labels, dtype=np.int64)
    if len(np.unique(found == UNLABELLED)) == 2:
        raise ValueError(f"{file}: some lines have a label and some have none; give all of them one, or none")
    _refuse_two_labels(file, paths, found)
    return paths, found


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of each line that is not blank; Windows line ends and a byte order mark are taken off."""
    try:
        with file.open(encoding="utf-8-sig") as text:
            for number, line in enumerate(text, 1):
                if line := line.strip(" \t\r\n"):
                    yield number, line
    except OSError as error:
        raise ValueError(
            f"cannot read the list file {file}: {error.strerror}; check the path given by --source, --target, "
            "data.labelled_target or data.validation"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error}): a list file has lines of `path label`") from error


def _split_line(line: str, file: Path, number: int, unlabelled: bool) -> tuple[str, int]:
    path, _, label = line.replace("\t", " ").rpartition(" ")
    if label.isascii() and label.isdigit() and path:
        return path.rstrip(), int(label)
    if unlabelled and (not path or line.lower().endswith(IMAGE_SUFFIXES)):
        return line, UNLABELLED
    where = f"{file}, line {number}"
    if not path:
        raise ValueError(f"{where}: expected `path label`, got {line!r}: the label is missing")
    if re.fullmatch(r"-[0-9]+", label):
        raise ValueError(f"{where}: the label must be 0 or more, got {label}")
    raise ValueError(
        f"{where}: the label must be a whole number, got {label!r}: a line is `path label`, classes count from 0"
    )


def _inside(path: str, root: str | Path, file: Path, number: int) -> str:
    """The path, normalised; an error if it climbs out of the root."""
    if os.path.isabs(path):
        return path
    if ".." not in path and "./" not in path and "//" not in path:
        return path
    clean = posixpath.normpath(path)
    if clean == ".." or clean.startswith("../"):
        raise ValueError(
            f"{file}, line {number}: {path} leaves the root folder {root}; "
            "give an absolute path, or a --root that holds it"
        )
    return clean


def _refuse_two_labels(file: Path, paths: Sequence[str], labels: NDArray[np.int64]) -> None:
    """An error for a path that has one label on one line and another on another."""
    hashes = np.fromiter(map(hash, paths), dtype=np.int64, count=len(paths))
    hashes.sort()  # a set of 600,000 paths would weigh 60 MB
    if (hashes[1:] != hashes[:-1]).all():
        return
    first: dict[str, int] = {}
    for i, path in enumerate(paths):
        before = first.setdefault(path, i)
        if labels[before] != labels[i]:
            line, line_before = line_of(file, i), line_of(file, before)
            raise ValueError(
                f"{file}, line {line}: {path} has label {labels[i]} here and {labels[before]} on line {line_before}: "
                "keep one of the lines"
            )


def line_of(file: Path, entry: int) -> int:
    """The line that the entry (counted from 0) of a list file stands on."""
    return next(number for i, (number, _) in enumerate(_lines(file)) if i == entry)


def domains_from_lists(root: Path, *files: str | Path, led: bool = True) -> list[ImageList]:
    """The lists of some list files. Class names are the folders of the images where they tell.

    The first leads, as a run's source: it has labels, and a class that it lacks is an error. Not `led`: each has
    classes of its own, or no labels.
    """
    lists: list[ImageList] = []
    for file in map(Path, files):
        paths, labels = read_list(file, root, unlabelled=bool(lists) or not led)
        if led and lists:
            classes = lists[0].classes
            over = np.flatnonzero(labels >= len(classes))
            if len(over):
                raise ValueError(
                    f"{file}, line {line_of(file, int(over[0]))}: class {labels[over[0]]} is out of range: the source "
                    f"has classes 0 to {len(classes) - 1}, and {len(over):,} of the target's images lie beyond. "
                    "Remove them, or add the class to the source"
                )
        else:
            classes = class_names(paths, labels, int(labels.max()) + 1)
        lists.append(ImageList(file.stem, root, paths, labels, classes))
    return lists


def class_names(paths: Sequence[str], labels: NDArray[np.int64], num_classes: int) -> tuple[str, ...]:
    """The parent folder of each class's images, if each class has one of its own; else the numbers."""
    folders: dict[int, set[str]] = {}
    for path, label in zip(paths, labels.tolist(), strict=True):
        parts = path.rsplit("/", 2)
        folders.setdefault(label, set()).add(parts[-2] if len(parts) > 1 else "")
    names = [next(iter(folders[c])) if len(folders.get(c, ())) == 1 else "" for c in range(num_classes)]
    named = tuple(name or str(c) for c, name in enumerate(names))
    return named if len(set(named)) == num_classes else tuple(map(str, range(num_classes)))
