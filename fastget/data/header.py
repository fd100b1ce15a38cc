"""What the bytes of an image file tell before any pixel is decoded: its size, and whether its structure is whole."""

from __future__ import annotations

from collections.abc import Iterator


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
