"""Every file below a folder: an image to use, or one that is not used, with the reason. Nothing is passed over."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastget.common.text import and_more
from fastget.data.formats import OTHER_IMAGES, is_image_name

UNREADABLE = "a folder that may not be read"
NO_IMAGES = "a class folder without images, so no class"
BESIDE = "beside the class folders, so of no class"
HIDDEN = "hidden"


@dataclass(frozen=True)
class Unused:
    """A file, or a folder as a whole, that no list holds."""

    path: str  # relative to the root, as in a list
    reason: str


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
