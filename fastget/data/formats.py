"""The image formats: which ones are read, how their files are named, and what their bytes tell before any pixel is
decoded. Own parsing: both ends of a file and its size take 13 us of CPU, PIL's header alone 22, and a check may see
600,000 files; libjpeg takes files that crash DALI, and neither reports a second frame that claims to be larger."""

from __future__ import annotations

from collections.abc import Iterator

# Those that both PIL and DALI decode, by PIL's names -> how their files are named.
SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "BMP": (".bmp", ".dib"),
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "JPEG2000": (".jp2", ".j2k"),
}
FORMATS = tuple(SUFFIXES)
# What counts as an image in a folder. A GIF does, so that the check can name it and say why it is not read.
IMAGE_SUFFIXES = (*(suffix for suffixes in SUFFIXES.values() for suffix in suffixes), ".gif")

# Images that are none of these formats, by name: whoever has some should know why they are not used.
OTHER_IMAGES = {
    ".heic", ".heif", ".avif", ".jxl", ".svg", ".ico", ".tga", ".psd", ".exr", ".hdr",
    ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2",
}  # fmt: skip


def is_image_name(name: str) -> bool:
    """Whether a file of this name counts as an image. Hidden ones do not."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def sniff(head: bytes) -> str:
    """The format that a file's first bytes tell; an empty text if none."""
    for mark, name in (
        (b"\xff\xd8\xff", "JPEG"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"GIF8", "GIF"),
        (b"BM", "BMP"),
        (b"II*\0", "TIFF"),
        (b"MM\0*", "TIFF"),
        (b"\0\0\0\x0cjP  ", "JPEG2000"),
        (b"\xff\x4f\xff\x51", "JPEG2000"),
    ):
        if head.startswith(mark):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[:1] == b"P" and head[1:2] in b"123456" and head[2:3].isspace():
        return "PPM"
    return ""


# --- the structure of a file ---------------------------------------------------------------------


def size_told(kind: str, data: bytes) -> tuple[int, int] | None:
    """(width, height) by the header of a JPEG or PNG, of several frames the largest; none if it is not reached."""
    if kind == "PNG" and data[12:16] == b"IHDR":
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    sizes = [
        (int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big"))
        for at, marker in (_segments(data) if kind == "JPEG" else ())
        if _is_frame(marker) and at + 9 <= len(data)
    ]
    return max(sizes, key=lambda size: size[0] * size[1], default=None)


def is_whole(kind: str, head: bytes, tail: bytes, size: int) -> bool:
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


def sound_jpeg(data: bytes) -> bool:
    """Whether its segments lead to a frame header and a scan."""
    frame = False
    for at, marker in _segments(data):
        if marker == 0xDA:
            return frame
        if _is_frame(marker):
            length = int.from_bytes(data[at + 2 : at + 4], "big")
            frame = length >= 11 and any(data[at + 5 : at + 7]) and any(data[at + 7 : at + 9])
    return False


def sound_png(data: bytes) -> bool:
    """Whether its chunks lead from the header to the end."""
    at = 8
    if data[12:16] != b"IHDR":
        return False
    while at + 12 <= len(data):
        if data[at + 4 : at + 8] == b"IEND":
            return True
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    return False


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """(where, marker) of a JPEG's segments, to the first scan or as far as they go."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:  # padding
            at += 1
            continue
        yield at, marker
        if marker == 0xDA:
            return
        at += 2 + length


def _is_frame(marker: int) -> bool:
    return 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)
