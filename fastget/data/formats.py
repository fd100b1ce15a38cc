"""The image formats: which ones are read, how their files are named, how they begin."""

from __future__ import annotations

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
