"""Pictures for the tests: real photographs in every encoding, a small data set, a folder of damaged files."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image

from fastget.data.lists import ImageList


@lru_cache
def photograph() -> Image.Image:
    """A real photograph, 300 x 220."""
    return Image.fromarray(load_sample_image("china.jpg")[60:280, 100:400])


def pixels(seed: int, side: int = 40) -> NDArray[np.uint8]:
    """A cut of the photograph that differs from seed to seed."""
    x, y = (seed * 7) % (300 - side), (seed * 13) % (220 - side)
    return np.asarray(photograph())[y : y + side, x : x + side]


def write_encodings(folder: Path) -> list[str]:
    """The photograph as every kind of file that the loaders must agree on."""
    photo = photograph()
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    alpha = np.linspace(0, 255, 300 * 220).reshape(220, 300).astype(np.uint8)
    rgba = Image.fromarray(np.dstack([np.asarray(photo), alpha]))
    photo.save(folder / "jpeg.jpg", quality=90)
    photo.save(folder / "full_colour.jpg", quality=95, subsampling=0)
    photo.save(folder / "progressive.jpg", quality=90, progressive=True)
    photo.save(folder / "rotated.jpg", quality=90, exif=exif)
    photo.convert("L").save(folder / "grey.jpg", quality=90)
    photo.convert("CMYK").save(folder / "cmyk.jpg", quality=90)
    photo.save(folder / "rgb.png")
    photo.convert("L").save(folder / "grey.png")
    rgba.save(folder / "rgba.png")
    rgba.convert("LA").save(folder / "grey_alpha.png")
    photo.convert("P", palette=Image.Palette.ADAPTIVE).save(folder / "palette.png")
    photo.convert("1").save(folder / "one_bit.png")
    Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257).save(folder / "sixteen_bit.png")
    photo.save(folder / "png_named.jpg", format="PNG")
    photo.save(folder / "jpeg_named.png", format="JPEG", quality=90)
    photo.save(folder / "bmp_named.jpg", format="BMP")
    photo.save(folder / "webp_named.jpg", format="WEBP", lossless=True)
    photo.resize((90, 130)).save(folder / "small.jpg", quality=90)
    return sorted(p.name for p in folder.iterdir())


def write_damage(folder: Path) -> dict[str, str]:
    """One file of each kind of damage -> the kind that the check must give it. `gone.jpg` does not exist."""
    photo = photograph()
    photo.save(folder / "good.jpg", quality=90)
    photo.save(folder / "good.png")
    jpeg, png = (folder / "good.jpg").read_bytes(), (folder / "good.png").read_bytes()
    middle = len(jpeg) // 2
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.jpg").write_text("not an image at all")
    (folder / "page.jpg").write_text("<!DOCTYPE html><html>404</html>")
    photo.save(folder / "gif.jpg", format="GIF")
    (folder / "header_only.jpg").write_bytes(jpeg[: jpeg.index(b"\xff\xda")])
    (folder / "half.jpg").write_bytes(jpeg[:middle])
    (folder / "half.png").write_bytes(png[: len(png) // 2])
    (folder / "zeros_inside.jpg").write_bytes(jpeg[:middle] + bytes(64) + jpeg[middle + 64 :])
    flipped = bytearray(png)
    flipped[len(png) // 2] ^= 1
    (folder / "bit_inside.png").write_bytes(flipped)
    (folder / "directory.jpg").mkdir()
    (folder / "link.jpg").symlink_to("nowhere.jpg")
    return {
        "gone.jpg": "missing",
        "empty.jpg": "empty",
        "text.jpg": "not an image",
        "page.jpg": "not an image",
        "gif.jpg": "unsupported",
        "header_only.jpg": "truncated",
        "half.jpg": "truncated",
        "half.png": "truncated",
        "zeros_inside.jpg": "corrupt",
        "bit_inside.png": "corrupt",
        "directory.jpg": "directory",
        "link.jpg": "dangling link",
    }


def write_domains(root: Path, domains: tuple[str, ...] = ("photo", "sketch"), per_class: int = 12) -> Path:
    """ROOT/DOMAIN/CLASS/image: three classes of small pictures, JPEG and PNG."""
    for d, domain in enumerate(domains):
        for c, name in enumerate(("ant", "bee", "cat")):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for i in range(per_class):
                suffix = "png" if i % 3 == 0 else "jpg"
                Image.fromarray(pixels(1000 * d + 100 * c + i)).save(folder / f"{i:03d}.{suffix}", quality=90)
    return root


def write_ssda(root: Path, per_class: int = 12) -> Path:
    """DomainNet-126 in small, with SSDA_MME's lists: of each class 1 or 3 shots, 3 for validation, the rest."""
    lists = write_domains(root, ("real", "sketch"), per_class) / "txt" / "multi"
    lists.mkdir(parents=True)
    for domain in ("real", "sketch"):
        files = [sorted((root / domain / name).iterdir()) for name in ("ant", "bee", "cat")]
        lines = [[f"{file.relative_to(root)} {c}" for file in some] for c, some in enumerate(files)]
        parts = {f"labeled_source_images_{domain}": slice(None), f"validation_target_images_{domain}_3": slice(3, 6)}
        for shots in (1, 3):
            parts |= {f"labeled_target_images_{domain}_{shots}": slice(shots)}
            parts |= {f"unlabeled_target_images_{domain}_{shots}": slice(6, None)}
        for name, part in parts.items():
            (lists / f"{name}.txt").write_text("".join(f"{line}\n" for some in lines for line in some[part]))
    return root


def this_fastget() -> dict[str, str]:
    """The environment of a Python that imports the fastget under test, wherever it is started."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def image_list(folder: Path, names: list[str]) -> ImageList:
    """Files of a folder, all of one class."""
    return ImageList("some", folder, names, np.zeros(len(names), dtype=np.int64), ("thing",))
