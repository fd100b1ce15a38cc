"""Folders of class folders: ROOT/DOMAIN/CLASS/image."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastget.common.text import and_more
from fastget.data.formats import IMAGE_SUFFIXES, is_image_name
from fastget.data.lists import UNLABELLED, ImageList


def folders_in(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted. Hidden ones are left out."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def read_classes(
    root: Path, domain: str, found: Sequence[str], classes: Sequence[str]
) -> tuple[list[str], NDArray[np.int64]]:
    """Paths and labels of the images of ROOT/DOMAIN/CLASS/ for each class found, sorted within it; of those in the
    domain's own folder, without labels, if none is found."""
    paths: list[str] = []
    labels: list[int] = []
    for name in found or [""]:
        images = sorted(entry.name for entry in os.scandir(root / domain / name) if is_image_name(entry.name))
        paths += [posixpath.join(domain, name, image) for image in images]
        labels += [classes.index(name) if name else UNLABELLED] * len(images)
    return paths, np.asarray(labels, dtype=np.int64)


def domains_from_folders(root: Path, *domains: str, led: bool = True) -> list[ImageList]:
    """The lists of ROOT/DOMAIN/ for each of the domains. A folder of images without class folders has no labels.

    The first leads, as a run's source: the classes are its class folders, sorted, and one that it lacks is an error.
    Not `led`: the classes are those of all the domains.
    """
    found = {domain: _class_folders(root, domain) for domain in domains}
    classes = found[domains[0]] if led else sorted({name for names in found.values() for name in names})
    if led and not classes:
        folder = root / domains[0]
        raise ValueError(f"{folder} holds no class folders: expected {folder}/CLASS/image.jpg")
    return [_read_domain(root, domain, found[domain], classes) for domain in domains]


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
    return folders_in(folder)


def _read_domain(root: Path, domain: str, found: Sequence[str], classes: Sequence[str]) -> ImageList:
    unknown = [name for name in found if name not in classes]
    if unknown:
        raise ValueError(
            f"{root / domain} has class folders that the source lacks: {and_more(unknown)}. "
            "The target's classes must be among the source's"
        )
    paths, labels = read_classes(root, domain, found, classes)
    if not paths:
        raise ValueError(f"{root / domain} holds no image (looked for {', '.join(IMAGE_SUFFIXES)} in class folders)")
    return ImageList(domain, root, paths, labels, tuple(classes))
