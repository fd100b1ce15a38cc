"""What a root holds, for `fastget data`: the lists of all its domains, and a picture of two of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fastget.data.datasets import DATA_SETS, NAMES
from fastget.data.decode import BadImage, read_image
from fastget.data.digits import digits_root
from fastget.data.layout import present, read_domain
from fastget.data.lists import UNLABELLED, ImageList, class_folders, class_names, read_folder, read_list

SIDE, GAP, LABEL = 96, 4, 130  # pixels of the contact sheet


def survey(name: str, root: str | None, source: str | None, target: str | None) -> list[ImageList]:
    """The lists of the domains asked for, or of all there are. Raises ValueError with advice."""
    asked = [domain for domain in (source, target) if domain is not None]
    if name not in NAMES:
        raise ValueError(f"unknown data set {name!r}: choose from {', '.join(NAMES)}")
    if name == "lists":
        if not asked:
            raise ValueError("give the list files by --source and --target (one of them is enough)")
        return [_list(Path(file), Path(root or ".")) for file in dict.fromkeys(asked)]
    if name == "digits":
        root = str(digits_root(root))
    if root is None:
        raise ValueError(f"give the folder that {name} lies in by --root")
    if name == "folder":
        return _folders(Path(root), asked)
    known = DATA_SETS[name]
    return [read_domain(known, Path(root), domain) for domain in asked or present(known, Path(root))]


def _list(file: Path, root: Path) -> ImageList:
    paths, labels = read_list(file, root, unlabelled=True)
    classes = class_names(paths, labels, int(labels.max()) + 1) if labels[0] != UNLABELLED else ()
    return ImageList(file.stem, root, paths, labels, classes)


def _folders(root: Path, asked: list[str]) -> list[ImageList]:
    """Domain folders, with the classes of all of them together."""
    domains = asked or class_folders(root, ".")
    if not domains:
        raise ValueError(f"{root} holds no domain folders: expected {root}/DOMAIN/CLASS/image.jpg")
    classes = sorted({name for domain in domains for name in class_folders(root, domain)})
    return [read_folder(root, domain, classes) for domain in domains]


def together(lists: list[ImageList]) -> ImageList:
    """The images of several lists as one, without labels: what a packed cache is made of."""
    paths = [path for images in lists for path in images.paths]
    return ImageList(lists[0].name, lists[0].root, paths, np.full(len(paths), UNLABELLED), ())


def contact_sheet(lists: list[ImageList], file: str | Path, *, rows: int = 10, columns: int = 4) -> Path:
    """A PNG of two domains side by side: a row a class, a few images of each."""
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
                name = images.classes[label] if label != UNLABELLED else "no label"
                draw.text((4, top + SIDE // 2 - 8), name[:18], fill="black", font=font)
            for c, index in enumerate(_spread(np.flatnonzero(images.labels == label), columns)):
                sheet.paste(_thumbnail(images.file(index)), (left + c * (SIDE + GAP), top))
    file = Path(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot write the contact sheet to {file}: {error}; choose a place by --out") from error
    return file


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
