"""What lies in folders of class folders, ROOT/DOMAIN/CLASS/image: every file is used, or named with the reason."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastget.common.text import and_more
from fastget.data.datasets import DATA_SETS
from fastget.data.formats import IMAGE_SUFFIXES, OTHER_IMAGES, is_image_name
from fastget.data.lists import UNLABELLED, ImageList, Unused

UNREADABLE = "a folder that may not be read"
NO_IMAGES = "a class folder without images, so no class"
BESIDE = "beside the class folders, so of no class"
HIDDEN = "hidden"


@dataclass
class Found:
    """What lies below a folder: images in the order of their folders, names sorted in each."""

    images: list[str] = field(default_factory=list)
    unused: list[Unused] = field(default_factory=list)


def walk(root: str | Path, folder: str, *, without: Iterable[str] = ()) -> Found:
    """All files of ROOT/FOLDER and below it, links followed; but for the folders named in `without`, in FOLDER itself.

    Paths are relative to the root. A folder's own images come before those of its folders.
    """
    found = Found()
    _into(found, str(root), folder, set(), frozenset(without))
    return found


def _into(found: Found, root: str, folder: str, seen: set[str], without: frozenset[str], hidden: bool = False) -> None:
    place = os.path.join(root, folder)
    real = os.path.realpath(place)
    if real in seen:  # links may lead in a circle
        found.unused.append(Unused(folder, "a link to a folder that is read already"))
        return
    seen.add(real)
    try:
        with os.scandir(place) as entries:
            inside = sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError as error:
        found.unused.append(Unused(folder, f"{UNREADABLE} ({error.strerror})"))
        return
    below = []
    for name, is_folder in inside:
        path = posixpath.join(folder, name)
        if is_image_name(name) and not hidden:
            found.images.append(path)  # a folder of such a name too: the check says what it is
        elif is_folder:
            below += [] if name in without else [path]
        else:
            found.unused.append(Unused(path, HIDDEN if hidden else _why_not(name)))
    for path in below:
        _into(found, root, path, seen, frozenset(), hidden or posixpath.basename(path).startswith("."))


def _why_not(name: str) -> str:
    """Why a file of this name is no image of a list."""
    suffix = os.path.splitext(name)[1].lower()
    if name.startswith("."):
        return HIDDEN
    if suffix in OTHER_IMAGES:
        return f"{suffix} is not read, convert it to JPEG or PNG"
    return "not named as an image" if suffix else "without an extension"


def unused_notes(name: str, unused: Sequence[Unused]) -> list[str]:
    """A line for each reason: how many, and the first of them."""
    by_reason: dict[str, list[str]] = {}
    for one in unused:
        by_reason.setdefault(one.reason, []).append(one.path)
    return [f"{name}: {len(paths):,} not used, {reason}: {and_more(paths, 3)}" for reason, paths in by_reason.items()]


def unreadable(unused: Sequence[Unused]) -> list[Unused]:
    """The folders among them that nobody could look into: they may hold any number of images."""
    return [one for one in unused if one.reason.startswith(UNREADABLE)]


# --- domains -------------------------------------------------------------------------------------


def folders_in(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted. Hidden ones are left out."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise ValueError(f"cannot look into the folder {folder}: {error.strerror}; check its permissions") from error


def what_is(root: Path) -> str:
    """Of a place that holds no domain's folder: why, in words."""
    if not root.is_dir():
        return "is a file" if root.exists() else "does not exist"
    return "holds no domain folders" if any(root.iterdir()) else "is empty"


@dataclass
class DomainFolder:
    """What a domain's folder holds: images by class folder, or under an empty name where it has no class folders."""

    images: dict[str, list[str]] = field(default_factory=dict)  # paths relative to the root
    unused: list[Unused] = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        """The class folders that hold an image, sorted."""
        return sorted(name for name, images in self.images.items() if name and images)

    def labelled(self, classes: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
        """Paths and labels, class by class."""
        number = {name: label for label, name in enumerate(classes)}
        paths = [path for images in self.images.values() for path in images]
        labels = [number[name] if name else UNLABELLED for name, images in self.images.items() for _ in images]
        return paths, np.asarray(labels, dtype=np.int64)


def read_folder(root: Path, domain: str) -> DomainFolder:
    """Every file below ROOT/DOMAIN/, used or named. A class folder's images lie in it or deeper, sorted by folder."""
    names = folders_in(root / domain)
    for name in names:
        if name.encode(errors="replace").decode() != name:  # no file of results could name the class
            raise ValueError(
                f"the class folder {os.fsencode(name)!r} in {root / domain} has a name that is not UTF-8 text: "
                "rename it"
            )
    beside = walk(root, domain, without=names)
    if not names:
        return DomainFolder({"": beside.images}, beside.unused)
    read = DomainFolder(unused=[*beside.unused, *(Unused(path, BESIDE) for path in beside.images)])
    for name in names:
        found = walk(root, posixpath.join(domain, name))
        read.images[name] = found.images
        read.unused += found.unused
        if not found.images and not any(one.path == posixpath.join(domain, name) for one in unreadable(found.unused)):
            read.unused.append(Unused(posixpath.join(domain, name), NO_IMAGES))
    return read


def domains_from_folders(root: Path, *domains: str, led: bool = True) -> list[ImageList]:
    """The lists of ROOT/DOMAIN/ for each of the domains. A folder of images without class folders has no labels.

    The first leads, as a run's source: the classes are its class folders that hold an image, sorted, and one that it
    lacks is an error. Not `led`: the classes are those of all the domains.
    """
    for domain in domains:
        if not (root / domain).is_dir():
            there = folders_in(root) if root.is_dir() else []
            found = f"{root} " + (f"holds {and_more(there)}" if there else what_is(root))
            raise ValueError(f"no domain folder {root / domain}: {found}; a domain's images lie in ROOT/DOMAIN/CLASS/")
    read = {domain: read_folder(root, domain) for domain in domains}
    first = read[domains[0]]
    _refuse_deeper_classes(root, domains[:1] if led else domains)
    classes = first.classes if led else sorted({name for found in read.values() for name in found.classes})
    if led and "" in first.images:
        folder = root / domains[0]
        raise ValueError(f"{folder} holds no class folders: expected {folder}/CLASS/image.jpg")
    return [_list_of(root, domain, read[domain], classes, first) for domain in domains]


def _list_of(root: Path, domain: str, found: DomainFolder, classes: Sequence[str], source: DomainFolder) -> ImageList:
    if not any(found.images.values()):
        why = "; ".join(unused_notes(domain, found.unused)) or "it is empty"
        raise ValueError(
            f"{root / domain} holds no image (looked for {', '.join(IMAGE_SUFFIXES)} in class folders): {why}"
        )
    new = [name for name in found.images if name and name not in classes]
    unknown = [name for name in new if found.images[name] or name not in source.images]
    if unknown:
        empty = [name for name in unknown if name in source.images]
        hint = f" (the source's folders of {and_more(empty)} hold no image that can be read)" if empty else ""
        raise ValueError(
            f"{root / domain} has class folders that the source lacks: {and_more(unknown)}{hint}. "
            "The target's classes must be among the source's"
        )
    paths, labels = found.labelled(classes)
    return ImageList(domain, root, paths, labels, tuple(classes), tuple(found.unused))


def _refuse_deeper_classes(root: Path, domains: Sequence[str]) -> None:
    """An error where each domain is one folder of folders: its class would be all there is, and tell nothing."""
    inner = {names[0] if len(names := folders_in(root / domain)) == 1 else "" for domain in domains}
    if len(inner) != 1 or "" in inner:
        return
    (name,) = inner
    folders = [root / domain / name for domain in domains]
    if not all(folders_in(folder) and not _has_files(folder) for folder in folders):
        return
    known = [data.name for data in DATA_SETS.values() if data.between == name]
    hint = f" If this is {known[0]}, use --data {known[0]}, which knows the folder." if known else ""
    raise ValueError(
        f"{folders[0]} is the only class folder of {domains[0]}, and holds nothing but folders "
        f"({and_more(folders_in(folders[0]))}): the classes lie one level deeper than expected, ROOT/DOMAIN/CLASS/."
        f"{hint} Otherwise move them up, or give the domains as {domains[0]}/{name} ..."
    )


def _has_files(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(not entry.is_dir() for entry in entries)
