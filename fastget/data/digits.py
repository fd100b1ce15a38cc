"""The embedded data set, VisDA in miniature: from digits rendered from fonts to real handwritten ones.

Source `fonts`: the text fonts that ship with matplotlib, at random size, rotation, shear and stroke.
Target `handwritten`: the 1,797 scans that ship with scikit-learn. Both are written once as image files with lists,
so that the same loaders, protocols and checks run on them as on VisDA.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import platformdirs
from PIL import Image, ImageDraw, ImageFont

from fastget.common.files import made_whole

SIDE = 32  # pixels
INK = 24  # pixels that a scan fills: it touches its own border, and crops must not cut it
PER_CLASS = 200  # rendered digits of each class
VERSION = "digits-1"  # another folder whenever the images change
# The text fonts: matplotlib's symbol, size-variant, display and last-resort fonts have no digits.
FONTS = (
    "DejaVuSans*.ttf",
    "DejaVuSerif*.ttf",
    "STIXGeneral*.ttf",
    "cmb10.ttf",
    "cmr10.ttf",
    "cmss10.ttf",
    "cmti10.ttf",
    "cmtt10.ttf",
)


def digits_root(root: str | Path | None = None) -> Path:
    """The folder of the data set, made if it isn't there: fonts/, handwritten/, and a list file of each."""
    folder = Path(root) if root else Path(platformdirs.user_cache_dir("fastget")) / VERSION
    if (folder / "handwritten.txt").is_file() and (folder / "fonts.txt").is_file():
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(
            f"{folder} is not empty and holds no digits (fonts.txt and handwritten.txt are missing): "
            "choose another folder by --root, or leave --root out"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with made_whole(folder) as making:
            making.mkdir()
            _write_fonts(making)
            _write_handwritten(making)
            if folder.exists():
                folder.rmdir()  # it is empty, or another process has just filled it
    except OSError as error:
        if not (folder / "handwritten.txt").is_file():  # else another process was first, with the same images
            why = error.strerror or error
            raise ValueError(f"cannot write the digits to {folder}: {why}; choose a folder by --root") from error
    return folder


def _save(root: Path, domain: str, number: int, label: int, image: Image.Image) -> str:
    path = Path(domain) / str(label) / f"{number:04d}.png"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    image.save(root / path)
    return f"{path.as_posix()} {label}\n"


def _write_handwritten(root: Path) -> None:
    from sklearn.datasets import load_digits

    scans = load_digits()
    lines = []
    for number, (scan, label) in enumerate(zip(scans.images, scans.target, strict=True)):
        small = Image.fromarray(np.rint(scan * (255 / 16)).astype(np.uint8))  # 8 x 8, 17 levels
        image = Image.new("L", (SIDE, SIDE))
        image.paste(small.resize((INK, INK), Image.Resampling.BICUBIC), ((SIDE - INK) // 2, (SIDE - INK) // 2))
        lines.append(_save(root, "handwritten", number, int(label), image))
    (root / "handwritten.txt").write_text("".join(lines), encoding="utf-8")


def _write_fonts(root: Path) -> None:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = sorted({f for pattern in FONTS for f in folder.glob(pattern) if "Display" not in f.name})
    if not fonts:
        raise ValueError(f"matplotlib's fonts are missing from {folder}: reinstall matplotlib")
    random = np.random.Generator(np.random.Philox(key=2023))
    lines = []
    for number in range(10 * PER_CLASS):
        label = number % 10
        font = fonts[int(random.integers(len(fonts)))]
        lines.append(_save(root, "fonts", number, label, _render(str(label), font, random)))
    (root / "fonts.txt").write_text("".join(lines), encoding="utf-8")


def _render(digit: str, font: Path, random: np.random.Generator) -> Image.Image:
    """White on black, drawn at four times the size, then sheared, turned and reduced."""
    big = 4 * SIDE
    height, stroke = random.uniform(56, 92), int(random.integers(0, 5))
    left, top, right, bottom = ImageFont.truetype(str(font), 100).getbbox(digit)
    scale = height / (bottom - top)
    face = ImageFont.truetype(str(font), 100 * scale)
    corner = (big / 2 - scale * (left + right) / 2, big / 2 - scale * (top + bottom) / 2)  # its ink in the centre
    canvas = Image.new("L", (big, big))
    ImageDraw.Draw(canvas).text(corner, digit, fill=255, font=face, stroke_width=stroke)
    angle, shear = math.radians(random.uniform(-15, 15)), random.uniform(-0.25, 0.25)
    # output pixel -> input pixel: turn about the centre, then shear
    cos, sin = math.cos(angle), math.sin(angle)
    a, b, d, e = cos + shear * sin, -sin + shear * cos, sin, cos
    centre = big / 2
    c, f = centre - a * centre - b * centre, centre - d * centre - e * centre
    turned = canvas.transform((big, big), Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BILINEAR)
    return turned.resize((SIDE, SIDE), Image.Resampling.BOX)
