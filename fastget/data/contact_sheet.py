"""What two domains look like, side by side: a contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fastget.common.files import writing
from fastget.data.decode import BadImage, read_image
from fastget.data.lists import UNLABELLED, ImageList

SIDE, GAP, LABEL = 96, 4, 130  # pixels of the contact sheet


def contact_sheet(
    lists: Sequence[ImageList], file: str | Path, *, rows: int = 10, columns: int = 4
) -> tuple[Path, str]:
    """A PNG of two domains side by side: a row a class, a few images of each. And, in words, what of all it shows."""
    shown = lists[:2]
    labels = np.unique(np.concatenate([images.labels for images in shown]))
    picked = labels[np.unique(np.linspace(0, len(labels) - 1, min(rows, len(labels))).round().astype(int))]
    width = columns * (SIDE + GAP)
    sheet = Image.new("RGB", (LABEL + len(shown) * (width + 4 * GAP), 24 + len(picked) * (SIDE + GAP)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for d, images in enumerate(shown):
        left = LABEL + d * (width + 4 * GAP)
        draw.text((left, 4), f"{images.name}: {len(images):,} images", fill="black", font=font)
        for r, label in enumerate(picked.tolist()):
            top = 24 + r * (SIDE + GAP)
            if d == 0:
                name = _name(shown, label)
                draw.text((4, top + SIDE // 2 - 8), name[:18], fill="black", font=font)
            for c, index in enumerate(_spread(np.flatnonzero(images.labels == label), columns)):
                sheet.paste(_thumbnail(images.file(index)), (left + c * (SIDE + GAP), top))
    file = Path(file)
    if file.suffix.lower() not in Image.registered_extensions():
        raise ValueError(f"cannot write the contact sheet to {file}: end its name in .png or .jpg, by --out")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(file)
    return file, _words(lists, shown, len(picked), len(labels))


def _name(lists: Sequence[ImageList], label: int) -> str:
    """A class, by the first list that has it."""
    if label == UNLABELLED:
        return "no label"
    return next(images.classes[label] for images in lists if label < len(images.classes))


def _words(lists: Sequence[ImageList], shown: Sequence[ImageList], picked: int, labels: int) -> str:
    """What of the lists is on the sheet, and how to see the others."""
    names = " and ".join(images.name for images in shown)
    domains = f"{len(shown)} of {len(lists)} domains, {names}" if len(shown) < len(lists) else names
    others = " (--source and --target choose others)" if len(shown) < len(lists) else ""
    classes = f"{picked} of {labels} classes" if picked < labels else "all classes"
    return f"of {domains}{others}; {classes}"


def _spread(index: np.ndarray[tuple[int], np.dtype[np.int64]], count: int) -> list[int]:
    """A few of many, evenly."""
    if not len(index):
        return []
    return [int(index[k]) for k in np.unique(np.linspace(0, len(index) - 1, min(count, len(index))).astype(int))]


def _thumbnail(file: str) -> Image.Image:
    try:
        return read_image(file, SIDE)
    except BadImage:
        cross = Image.new("RGB", (SIDE, SIDE), "#eeeeee")
        ImageDraw.Draw(cross).line([(0, 0), (SIDE, SIDE)], fill="red", width=3)
        return cross
