"""One image file: decoded as the protocol's first transform does it, or named as bad with the reason.

All loaders and the check read the same formats: those that both PIL and DALI decode. So a GIF is refused by all of
them, and a file that the check passes is one that training can read.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError

from fastget.common.choices import Interpolation
from fastget.data.formats import FORMATS, SUFFIXES, sniff

TAIL = 64  # bytes at the end in which a whole file has its end mark
DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)  # what PIL raises


RESAMPLING: dict[Interpolation, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


class BadImage(ValueError):
    """An image that cannot be read: `path`, and the `reason` in words."""

    def __init__(self, path: str, kind: str, reason: str) -> None:
        super().__init__(f"cannot read {path}: {reason}; find all such files with `fastget data check`")
        self.path, self.kind, self.reason = path, kind, reason


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file. A misnamed one is named too, but can be read: it is not bad."""

    path: str
    kind: str  # missing, dangling link, directory, no permission, empty, not an image, unsupported, truncated, ...
    reason: str

    @property
    def bad(self) -> bool:
        return self.kind != "misnamed"


# --- decoding ------------------------------------------------------------------------------------


def read_image(file: str, resize: int, interpolation: Interpolation = "bilinear") -> Image.Image:
    """Decoded to RGB and resized to a square, antialiased. EXIF rotation is ignored, as DALI is told to."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            # What torchvision's Resize does to a PIL image, without the second that importing torchvision takes.
            return to_rgb(image).resize((resize, resize), RESAMPLING[interpolation])
    except DECODE_ERRORS as error:
        raise bad_image(file, error) from error


def read_sound(file: str) -> bytes:
    """A file's bytes. Raises BadImage unless its structure is whole as far as decoders parse it before they decode."""
    try:
        with open(file, "rb") as opened:
            data = opened.read()
    except OSError as error:
        raise bad_image(file, error) from error
    kind = sniff(data[:TAIL])
    sound = {"JPEG": _sound_jpeg, "PNG": _sound_png}.get(kind)
    if sound and sound(data) and _whole(kind, data[:TAIL], data[-TAIL:], len(data)):
        return data
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            rgb = to_rgb(image)
    except DECODE_ERRORS as error:
        raise bad_image(file, error) from error
    if sound is None or sound(data):
        return data
    again = io.BytesIO()  # PIL reads it though it's not sound: hand it on in a form that everyone reads
    rgb.save(again, "PNG", compress_level=1)
    return again.getvalue()


def _sound_jpeg(data: bytes) -> bool:
    """Whether its segments lead to a frame header and a scan."""
    at, frame = 2, False
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:  # padding
            at += 1
            continue
        if marker == 0xDA:
            return frame
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            frame = length >= 11 and any(data[at + 5 : at + 7]) and any(data[at + 7 : at + 9])
        at += 2 + length
    return False


def _sound_png(data: bytes) -> bool:
    """Whether its chunks lead from the header to the end."""
    at = 8
    if data[12:16] != b"IHDR":
        return False
    while at + 12 <= len(data):
        if data[at + 4 : at + 8] == b"IEND":
            return True
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    return False


def to_rgb(image: Image.Image) -> Image.Image:
    """As DALI converts it: 16 bits are scaled to 8, transparency is dropped."""
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.float64) / 257
        image = Image.fromarray(np.clip(np.rint(levels), 0, 255).astype(np.uint8))
    return image.convert("RGB")


def bad_image(file: str, error: BaseException) -> BadImage:
    """Why a file could not be decoded, found by looking at it."""
    problem = look_at_ends(file) or Problem(file, "undecodable", f"cannot be decoded ({error})")
    return BadImage(file, problem.kind, problem.reason)


# --- looking at a file ---------------------------------------------------------------------------


def look_at_ends(path: str) -> Problem | None:
    """What is wrong with a file, from its first and last bytes; one whose end mark is missing is decoded."""
    try:
        info = os.stat(path)
        if stat.S_ISDIR(info.st_mode):
            return Problem(path, "directory", "is a directory, not a file")
        if not stat.S_ISREG(info.st_mode):
            return Problem(path, "not a file", "is not a regular file")
        if info.st_size == 0:
            return Problem(path, "empty", "is empty (0 bytes)")
        with open(path, "rb", buffering=0) as file:
            head = file.read(TAIL)
            file.seek(max(0, info.st_size - TAIL))
            tail = file.read(TAIL)
    except OSError as error:
        return _unreadable(path, error)
    kind = sniff(head)
    if kind not in FORMATS:
        return Problem(path, *_no_image(kind, head))
    if not _whole(kind, head, tail, info.st_size) and (problem := decode_all(path)):
        cut = kind in ("JPEG", "PNG") and problem.kind in ("corrupt", "undecodable")  # its end mark is missing
        return Problem(path, "truncated", f"is cut short: {problem.reason}") if cut else problem
    return misnamed(path, kind)


def _unreadable(path: str, error: OSError) -> Problem:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        if os.path.islink(path):
            return Problem(path, "dangling link", f"is a link to {os.readlink(path)}, which does not exist")
        return Problem(path, "missing", "does not exist")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Problem(path, "no permission", "may not be read (no permission)")
    return Problem(path, "unreadable", f"cannot be read ({error.strerror or error})")


def _no_image(kind: str, head: bytes) -> tuple[str, str]:
    if kind:
        return "unsupported", f"is a {kind}, which the loaders do not read; convert it to PNG"
    start = head.lstrip()[:15].lower()
    if start.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "not an image", "is a web page or XML, not an image: a download that failed?"
    if start.startswith(b"version https://"):
        return "not an image", "is a Git LFS pointer, not an image: run `git lfs pull`"
    if all(byte >= 32 or byte in b"\t\r\n" for byte in head):
        return "not an image", "is text, not an image"
    return "not an image", "is not an image (its first bytes are those of no known format)"


def _whole(kind: str, head: bytes, tail: bytes, size: int) -> bool:
    """Whether a file ends as its format does. False only means that it must be decoded to know."""
    if kind == "JPEG":
        return b"\xff\xd9" in tail
    if kind == "PNG":
        return b"IEND\xaeB`\x82" in tail
    if kind == "WEBP":
        return int.from_bytes(head[4:8], "little") + 8 <= size
    if kind == "BMP":
        return 0 < int.from_bytes(head[2:6], "little") <= size
    return False


def misnamed(path: str, kind: str) -> Problem | None:
    """A problem if a file's extension is that of another format."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix in SUFFIXES.get(kind, ()) or not suffix:
        return None
    return Problem(path, "misnamed", f"is a {kind} named {suffix}; it can be read all the same")


def decode_all(path: str) -> Problem | None:
    """What decoding the whole file shows, as the loaders do it; PNG's checksums as well."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if sniff(data[:TAIL]) == "PNG":
            with Image.open(io.BytesIO(data)) as image:
                image.verify()
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            to_rgb(image)
    except OSError as error:
        if error.errno is not None:
            return _unreadable(path, error)
        return Problem(path, *_decoder_said(error))
    except DECODE_ERRORS as error:
        return Problem(path, *_decoder_said(error))
    return None


def _decoder_said(error: BaseException) -> tuple[str, str]:
    words = str(error).removesuffix(".").strip() or type(error).__name__
    if "truncated" in words.lower() or isinstance(error, EOFError):
        return "truncated", f"is cut short ({words})"
    if isinstance(error, UnidentifiedImageError):
        return "undecodable", "cannot be decoded (its header is damaged)"
    return "corrupt", f"is damaged ({words})"
