"""Lists of images: read from list files (`path label` lines) and from folders of class folders."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastget.text import and_more

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm")
UNLABELLED = -1


@dataclass(frozen=True)
class ImageList:
    """Images of one domain: where they lie and what they show."""

    name: str  # the domain, for people
    root: Path
    paths: Sequence[str]  # relative to root, or absolute
    labels: NDArray[np.int64]  # UNLABELLED where no label is known
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, index: int) -> str:
        """The path to open."""
        return os.path.join(self.root, self.paths[index])

    @property
    def labelled(self) -> bool:
        return bool((self.labels != UNLABELLED).all())

    def keep(self, mask: NDArray[np.bool_]) -> ImageList:
        """The images where `mask` is true."""
        kept = [path for path, k in zip(self.paths, mask.tolist(), strict=True) if k]
        return ImageList(self.name, self.root, kept, self.labels[mask], self.classes)


# --- list files ----------------------------------------------------------------------------------


def read_list(file: str | Path, root: str | Path, *, unlabelled: bool = False) -> tuple[list[str], NDArray[np.int64]]:
    """Paths and labels of a list file. With `unlabelled`, a list whose lines hold a path alone is taken too.

    Raises ValueError with file and line for a label that isn't a class number, a path that leaves the root,
    and a path given twice with two labels.
    """
    file, root = Path(file), Path(root)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(
            f"cannot read the list file {file}: {error.strerror}; give its path by --source or --target"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error}): a list file has lines of `path label`") from error
    paths: list[str] = []
    labels: list[int] = []
    seen: dict[str, int] = {}  # path -> line
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line:
            continue
        path, label = _split_line(line, f"{file}, line {number}", unlabelled)
        path = _inside(path, f"{file}, line {number}")
        if path in seen:
            first = labels[seen[path]]
            if first != label:
                raise ValueError(
                    f"{file}, line {number}: {path} has label {label} here and {first} before: keep one of the lines"
                )
        else:
            seen[path] = len(labels)
        paths.append(path)
        labels.append(label)
    if not paths:
        raise ValueError(f"{file} holds no image: expected lines of `path label`")
    if len({label == UNLABELLED for label in labels}) == 2:
        raise ValueError(f"{file}: some lines have a label and some have none; give all of them one, or none")
    return paths, np.asarray(labels, dtype=np.int64)


def _split_line(line: str, where: str, unlabelled: bool) -> tuple[str, int]:
    path, _, label = line.replace("\t", " ").rpartition(" ")
    if not path:
        if unlabelled:
            return line, UNLABELLED
        raise ValueError(f"{where}: expected `path label`, got {line!r}: the label is missing")
    try:
        value = int(label)
    except ValueError as error:
        raise ValueError(
            f"{where}: the label must be a whole number, got {label!r}: a line is `path label`, classes count from 0"
        ) from error
    if value < 0:
        raise ValueError(f"{where}: the label must be 0 or more, got {value}")
    return path.rstrip(), value


def _inside(path: str, where: str) -> str:
    """The path, normalised; an error if it climbs out of the root."""
    if os.path.isabs(path):
        return path
    clean = posixpath.normpath(path.replace("\\", "/") if os.sep == "\\" else path)
    if clean == ".." or clean.startswith("../"):
        raise ValueError(f"{where}: {path} leaves the root folder; give an absolute path, or a root that holds it")
    return clean


def domains_from_lists(source: str | Path, target: str | Path, root: str | Path) -> tuple[ImageList, ImageList]:
    """Source and target from two list files. Class names are the folders of the source's images where they tell."""
    source_paths, source_labels = read_list(source, root)
    target_paths, target_labels = read_list(target, root, unlabelled=True)
    num_classes = int(source_labels.max()) + 1
    _refuse_new_classes(Path(target), target_labels, num_classes)
    classes = _class_names(source_paths, source_labels, num_classes)
    return (
        ImageList(Path(source).stem, Path(root), source_paths, source_labels, classes),
        ImageList(Path(target).stem, Path(root), target_paths, target_labels, classes),
    )


def _refuse_new_classes(file: Path, labels: NDArray[np.int64], num_classes: int) -> None:
    over = np.flatnonzero(labels >= num_classes)
    if len(over):
        wanted = int(labels[over[0]])
        lines = (n for n, line in enumerate(file.read_text(encoding="utf-8-sig").split("\n"), 1) if line.strip())
        line = next(number for i, number in enumerate(lines) if i == over[0])
        raise ValueError(
            f"{file}, line {line}: class {wanted} is out of range: the source has classes 0 to {num_classes - 1}, "
            f"and {len(over)} of the target's images lie beyond. Remove them, or add the class to the source"
        )


def _class_names(paths: Sequence[str], labels: NDArray[np.int64], num_classes: int) -> tuple[str, ...]:
    """The parent folder of each class's images, if each class has one of its own; else the numbers."""
    folders: dict[int, set[str]] = {}
    for path, label in zip(paths, labels.tolist(), strict=True):
        folders.setdefault(label, set()).add(posixpath.basename(posixpath.dirname(path)))
    names = [next(iter(folders[c])) if len(folders.get(c, ())) == 1 else "" for c in range(num_classes)]
    told = [name for name in names if name]
    if len(set(told)) != len(told):
        return tuple(str(c) for c in range(num_classes))
    return tuple(name or str(c) for c, name in enumerate(names))


# --- folders -------------------------------------------------------------------------------------


def domains_from_folders(root: str | Path, source: str, target: str) -> tuple[ImageList, ImageList]:
    """Source and target from ROOT/DOMAIN/CLASS/image. The classes are the source's class folders, sorted.
    A target folder that holds images and no class folders is an unlabelled target."""
    root = Path(root)
    classes = _class_folders(root, source)
    if not classes:
        raise ValueError(f"{root / source} holds no class folders: expected {root / source}/CLASS/image.jpg")
    return _read_domain(root, source, classes), _read_domain(root, target, classes)


def _class_folders(root: Path, domain: str) -> list[str]:
    folder = root / domain
    if not folder.is_dir():
        there = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else None
        found = (
            f"{root} holds {and_more(there)}"
            if there
            else f"{root} " + ("is empty" if root.is_dir() else "does not exist")
        )
        raise ValueError(f"no domain folder {folder}: {found}; a domain's images lie in ROOT/DOMAIN/CLASS/")
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _read_domain(root: Path, domain: str, classes: Sequence[str]) -> ImageList:
    found = _class_folders(root, domain)
    unknown = [name for name in found if name not in classes]
    if unknown:
        raise ValueError(
            f"{root / domain} has class folders that the source lacks: {and_more(unknown)}. "
            "The target's classes must be among the source's"
        )
    paths: list[str] = []
    labels: list[int] = []
    for label, name in [(classes.index(name), name) for name in found] or [(UNLABELLED, "")]:
        images = sorted(_images(root / domain / name))
        paths += [posixpath.join(domain, name, image) for image in images]
        labels += [label] * len(images)
    if not paths:
        raise ValueError(f"{root / domain} holds no image (looked for {', '.join(IMAGE_SUFFIXES)} in class folders)")
    return ImageList(domain, root, paths, np.asarray(labels, dtype=np.int64), tuple(classes))


def _images(folder: Path) -> Iterable[str]:
    return (p.name for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith("."))
