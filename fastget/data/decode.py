"""What an image file shows, decoded as the protocol's first transform does it; or why it cannot be read.

All loaders and the check read the same formats: those that both PIL and DALI decode. So a GIF is refused by all of
them, and a file that the check passes is one that training can read.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import zlib
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fastget.common.choices import Interpolation
from fastget.common.errors import RunFailed
from fastget.data.formats import FORMATS, SUFFIXES, is_whole, size_told, sniff, sound_jpeg, sound_png

HEAD = 4096  # bytes at the beginning in which most files tell their size
TAIL = 64  # bytes at the end in which a whole file has its end mark
MAX_PIXELS = 178_956_970  # of data.max_pixels: what PIL alone would refuse from
# what PIL raises for files that are damaged, and for some that are made to harm
DECODE_ERRORS = (
    OSError, SyntaxError, ValueError, TypeError, EOFError, LookupError, ArithmeticError, AttributeError, MemoryError,
    NotImplementedError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
BAND = 256  # rows
OUT_OF_HANDLES = (errno.EMFILE, errno.ENFILE)


RESAMPLING: dict[Interpolation, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file. A misnamed one is named too, but can be read: it is not bad."""

    path: str
    kind: str  # missing, dangling link, directory, no permission, empty, not an image, unsupported, truncated, ...
    reason: str

    @property
    def bad(self) -> bool:
        return self.kind != "misnamed"


class BadImage(ValueError):
    """An image that cannot be read: `path`, and the `reason` in words."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"cannot read {problem.path}: {problem.reason}; find all such files with `fastget data check`")
        self.problem, self.path, self.kind, self.reason = problem, problem.path, problem.kind, problem.reason


class TooLarge(ValueError):
    """An image of more pixels than are decoded."""

    def __init__(self, size: tuple[int, int], max_pixels: int) -> None:
        super().__init__(
            f"has {size[0]:,} x {size[1]:,} pixels, over data.max_pixels={max_pixels}: make it smaller, or raise the "
            "limit"
        )


# --- decoding ------------------------------------------------------------------------------------


def read_image(
    file: str, resize: int, interpolation: Interpolation = "bilinear", max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Decoded to RGB and resized to a square, antialiased. EXIF rotation is ignored, as DALI is told to."""
    try:
        with open_regular(file) as opened, open_image(opened, max_pixels) as image:
            # What torchvision's Resize does to a PIL image, without the second that importing torchvision takes.
            return to_rgb(image).resize((resize, resize), RESAMPLING[interpolation])
    except DECODE_ERRORS as error:
        raise bad_image(file, error, max_pixels) from error


def read_sound(file: str, max_pixels: int = MAX_PIXELS) -> bytes:
    """A file's bytes. Raises BadImage unless its structure is whole as far as decoders parse it before they decode."""
    try:
        with open_regular(file) as opened:
            data = opened.read()
        kind = sniff(data[:TAIL])
        sound = {"JPEG": sound_jpeg, "PNG": sound_png}.get(kind)
        if sound and sound(data) and is_whole(kind, data[:TAIL], data[-TAIL:], len(data)):
            _refuse_large(size_told(kind, data), max_pixels)
            return data
        with open_image(io.BytesIO(data), max_pixels) as image:
            rgb = to_rgb(image)
    except DECODE_ERRORS as error:
        raise bad_image(file, error, max_pixels) from error
    if sound is None or sound(data):
        return data
    again = io.BytesIO()  # PIL reads it though it's not sound: hand it on in a form that everyone reads
    rgb.save(again, "PNG", compress_level=1)
    return again.getvalue()


def open_regular(file: str) -> BinaryIO:
    """The file, opened. What is no regular file is an OSError: to open a pipe would wait for a writer for ever."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_image(opened: BinaryIO, max_pixels: int) -> Image.Image:
    """The image with its header read and no pixel yet; TooLarge if that claims more than `max_pixels`."""
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > 2 * Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels  # PIL's own limit would come first
    image = Image.open(opened, formats=FORMATS)
    try:
        _refuse_large(image.size, max_pixels)
    except TooLarge:
        image.close()
        raise
    return image


def _refuse_large(size: tuple[int, int] | None, max_pixels: int) -> None:
    if size is not None and size[0] * size[1] > max_pixels:
        raise TooLarge(size, max_pixels)


def to_rgb(image: Image.Image) -> Image.Image:
    """As DALI converts it: 16 bits are scaled to 8, transparency is dropped."""
    if image.mode.startswith("I"):
        deep = np.asarray(image)
        levels = np.empty(deep.shape, dtype=np.uint8)
        for top in range(0, len(deep), BAND):  # by bands, since float64 takes eight times the room
            band = deep[top : top + BAND].astype(np.float64) / 257
            levels[top : top + BAND] = np.clip(np.rint(band), 0, 255).astype(np.uint8)
        image = Image.fromarray(levels)
    return image.convert("RGB")


def bad_image(file: str, error: BaseException, max_pixels: int = MAX_PIXELS) -> BadImage:
    """Why a file could not be decoded, found by looking at it."""
    problem = problem_of(file, error)
    if not isinstance(error, TooLarge):
        problem = look_at_ends(file, max_pixels) or problem
    return BadImage(problem)


# --- looking at a file ---------------------------------------------------------------------------


def look_at_ends(path: str, max_pixels: int = MAX_PIXELS) -> Problem | None:
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
            head = file.read(HEAD)
            file.seek(max(0, info.st_size - TAIL))
            tail = file.read(TAIL)
    except OSError as error:
        return _unreadable(path, error)
    kind = sniff(head[:TAIL])
    if kind not in FORMATS:
        return Problem(path, *_no_image(kind, head[:TAIL]))
    if problem := size_problem(path, size_told(kind, head), max_pixels):
        return problem
    if not is_whole(kind, head, tail, info.st_size) and (problem := decode_all(path, max_pixels)):
        cut = kind in ("JPEG", "PNG") and problem.kind in ("corrupt", "undecodable")  # its end mark is missing
        return Problem(path, "truncated", f"is cut short: {problem.reason}") if cut else problem
    return misnamed(path, kind)


def size_problem(path: str, size: tuple[int, int] | None, max_pixels: int) -> Problem | None:
    """A problem if a header claims too many pixels; PIL reads it where `size` is not known. What else is wrong is for
    others to find."""
    try:
        if size is None:
            with open_regular(path) as opened:
                open_image(opened, max_pixels).close()
        _refuse_large(size, max_pixels)
    except DECODE_ERRORS as error:
        problem = problem_of(path, error)
        return problem if problem.kind == "too large" else None
    return None


def _unreadable(path: str, error: OSError) -> Problem:
    if error.errno in OUT_OF_HANDLES:  # the file is not to blame: what would be read next cannot be opened either
        raise RunFailed(
            f"no more files can be opened ({error.strerror}): raise the limit by `ulimit -n`, or use fewer at a time "
            "(--workers, data.workers)"
        ) from error
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


def misnamed(path: str, kind: str) -> Problem | None:
    """A problem if a file's extension is that of another format."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix in SUFFIXES.get(kind, ()) or not suffix:
        return None
    return Problem(path, "misnamed", f"is a {kind} named {suffix}; it can be read all the same")


def decode_all(path: str, max_pixels: int = MAX_PIXELS) -> Problem | None:
    """What decoding the whole file shows, as the loaders do it; PNG's checksums as well."""
    try:
        with open_regular(path) as file:
            data = file.read()
        with open_image(io.BytesIO(data), max_pixels) as image:
            if image.format == "PNG":
                image.verify()
        with open_image(io.BytesIO(data), max_pixels) as image:
            to_rgb(image)
    except DECODE_ERRORS as error:
        return problem_of(path, error)
    return None


def problem_of(path: str, error: BaseException) -> Problem:
    """What an error of a reader or decoder says of a file."""
    if isinstance(error, TooLarge):
        return Problem(path, "too large", str(error))
    if isinstance(error, OSError) and error.errno is not None:
        return _unreadable(path, error)
    words = str(error).removesuffix(".").strip() or type(error).__name__
    if "truncated" in words.lower() or isinstance(error, EOFError):
        return Problem(path, "truncated", f"is cut short ({words})")
    if isinstance(error, UnidentifiedImageError):
        return Problem(path, "undecodable", "cannot be decoded (its header is damaged)")
    if isinstance(error, Image.DecompressionBombError):
        return Problem(path, "too large", f"has too many pixels ({words})")
    return Problem(path, "corrupt", f"is damaged ({words})")


# --- JPEGs by libjpeg-turbo's own interface --------------------------------------------------------
# Faster than PIL on small images. libjpeg continues after damage in mid-stream and only warns of it, which PIL and DALI
# swallow; simplejpeg raises.


def decode_jpeg(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(H, W, 3): the pixels of an encoded image in RGB. What simplejpeg does not take, PIL decodes."""
    try:
        return _decode(data)
    except ValueError:
        with Image.open(io.BytesIO(data.data)) as image:
            return np.array(image.convert("RGB"))


def jpeg_warning(data: bytes) -> str | None:
    """What libjpeg warns of in an image that it decodes all the same; none if nothing, empty if it cannot decode it."""
    try:
        _decode(data)
    except ValueError as error:
        words = str(error)
    else:
        return None
    try:
        simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # a kind of JPEG that it does not take, or one it has no name for
        return ""
    return words


def _decode(data: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """By libjpeg's exact methods: the pixels are PIL's. Raises ValueError for what libjpeg only warns of, too."""
    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False, strict=True)
    return pixels
