"""From a configuration's data section to the lists of both domains."""

from __future__ import annotations

import os

import numpy as np

from fastget.config import DataConfig
from fastget.digits import digits_root
from fastget.lists import ImageList, domains_from_folders, domains_from_lists
from fastget.text import and_more

DATA_SETS = ("digits", "folder", "lists")


def load_domains(data: DataConfig) -> tuple[ImageList, ImageList]:
    """The labelled source and the target. Every image is there, or is left out with data.bad_images=skip."""
    if data.name not in DATA_SETS:
        raise ValueError(f"unknown data set data.name={data.name!r}: choose from {', '.join(DATA_SETS)}")
    for field in ("source", "target") if data.name != "digits" else ():
        if getattr(data, field) is None:
            kind = "a domain folder under --root" if data.name == "folder" else "a list file"
            raise ValueError(f"data.{field} is missing: give {kind} by --{field}")
    if data.name == "digits":
        source, target = domains_from_folders(
            digits_root(data.root), data.source or "fonts", data.target or "handwritten"
        )
    elif data.name == "folder":
        if data.root is None:
            raise ValueError("data.root is missing: give the folder that holds the domain folders by --root")
        source, target = domains_from_folders(data.root, str(data.source), str(data.target))
    else:
        source, target = domains_from_lists(str(data.source), str(data.target), data.root or ".")
    return _leave_out_missing(source, data), _leave_out_missing(target, data)


def _leave_out_missing(images: ImageList, data: DataConfig) -> ImageList:
    there = np.fromiter((os.path.isfile(images.file(i)) for i in range(len(images))), dtype=bool, count=len(images))
    if there.all():
        return images
    missing = [images.file(i) for i in np.flatnonzero(~there)[:6]]
    count = int((~there).sum())
    if data.bad_images == "error":
        raise ValueError(
            f"{count} of the {len(images)} images of {images.name} are missing: {and_more(missing)}. "
            "Check --root, or leave them out with --bad-images skip"
        )
    if count == len(images):
        raise ValueError(f"all {count} images of {images.name} are missing, the first is {missing[0]}: check --root")
    return images.keep(there)
