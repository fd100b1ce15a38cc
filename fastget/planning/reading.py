"""What an image costs to read: from its file or from a packed cache, by a CPU's cores or by a card's decoder.

The CPU's figures are those of benchmarks/bench_loader.md, one thread: opening, resizing to a square, decoding by the
pixel. DALI decodes JPEG on a card, and PNG on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastget.config import Config
from fastget.data.packed.read import Encoding
from fastget.data.packed.write import JPEG_BYTES, estimate
from fastget.planning.cards import PlanCard

File = Literal["jpeg", "png"]
Cache = Literal["off", "jpeg", "raw"]
MILLI, MEGA = 1e-3, 1e6

OPENED = 0.15 * MILLI  # CPU-seconds an image
RESIZED = {"jpeg": 1.14 * MILLI, "png": 1.0 * MILLI}  # to 256 x 256, cropped and normalised
DECODED = {"jpeg": 8.3 * MILLI, "png": 35.2 * MILLI}  # a megapixel
PACKED = {"jpeg": 0.60 * MILLI, "raw": 0.26 * MILLI}  # a record of 256 x 256, on a CPU
SENT = 0.10 * MILLI  # a raw record that a card normalises: checksum and crop; a name that DALI is handed
PNG_BY_DALI = 26.6 * MILLI  # a megapixel: decoding alone, the card resizes
OF_CARDS = 0.2  # megapixels of the images that a card's rate is told of
BYTES = {"jpeg": 0.35, "png": 1.6}  # a pixel, in a file


@dataclass(frozen=True)
class Stored:
    """Image files of a domain."""

    file: File
    pixels: float


USUAL = Stored("jpeg", 500 * 500)  # a photograph of the benchmarks
RENDERED = Stored("png", 384 * 216)  # VisDA-2017's source
DIGIT = Stored("png", 32 * 32)
KNOWN = {("visda2017", "train"): RENDERED, ("digits", "fonts"): DIGIT, ("digits", "handwritten"): DIGIT}


@dataclass(frozen=True)
class Reading:
    """Of one image, the mean of both domains."""

    cpu: float  # seconds of one core
    card: float  # seconds of a card's decoder
    bytes: float  # that a disk delivers


def stored_as(config: Config, file: File | None, pixels: float | None) -> tuple[Stored, Stored]:
    """Source and target: as given, as known, or as is usual."""
    found = [KNOWN.get((config.data.name, domain or ""), USUAL) for domain in (config.data.source, config.data.target)]
    source, target = (Stored(file or one.file, pixels or one.pixels) for one in found)
    return source, target


def reading(config: Config, stored: tuple[Stored, ...], cache: Cache, card: PlanCard | None) -> Reading:
    """`card`: None is a CPU. The mean over the domains, which a step reads as many images of."""
    each = [_one(config.data.preprocessing.resize, one, cache, card) for one in stored]
    return Reading(*(sum(parts) / len(each) for parts in zip(*((r.cpu, r.card, r.bytes) for r in each), strict=True)))


def _one(resize: int, stored: Stored, cache: Cache, card: PlanCard | None) -> Reading:
    area = (resize / 256) ** 2
    megapixels = stored.pixels / MEGA
    if cache != "off":
        size = 3 * resize**2 if cache == "raw" else JPEG_BYTES * area
        if card is None:
            return Reading(OPENED / 3 + PACKED[cache] * area, 0.0, size)
        by_card = resize**2 / MEGA / OF_CARDS / card.jpeg if cache == "jpeg" else 0.0
        return Reading(SENT * (area if cache == "raw" else 1), by_card, size)
    size = BYTES[stored.file] * stored.pixels
    if card is None:
        return Reading(OPENED + RESIZED[stored.file] * area + DECODED[stored.file] * megapixels, 0.0, size)
    if stored.file == "png":
        return Reading(SENT + PNG_BY_DALI * megapixels, 0.0, size)
    return Reading(SENT, megapixels / OF_CARDS / card.jpeg, size)


def cache_bytes(images: int, resize: int) -> dict[str, int]:
    """Disk that a packed cache of each format takes."""
    return {name: estimate(images, Encoding(name, resize)) for name in ("jpeg", "raw")}
