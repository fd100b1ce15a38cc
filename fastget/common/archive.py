"""Torch's files are zip archives: whether one is as it was written, and what a file is that is none."""

from __future__ import annotations

import zipfile
from pathlib import Path

START = 512  # bytes that tell what a file is
FOLDER = 0x10  # the attribute that marks a member as a folder


def damage_in(file: Path) -> str:
    """What is wrong with an archive, in words; empty if nothing is. Raises what zipfile does for no archive at all.

    Torch compares no checksums, and reads nothing for a member that is marked as a folder: the weight would be what
    happens to lie in memory.
    """
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
        folders = [info.filename for info in archive.infolist() if info.is_dir() or info.external_attr & FOLDER]
    if damaged is not None:
        return f"the checksum of {damaged} is wrong"
    return f"{folders[0]} in it is marked as a folder" if folders else ""


def other_content(start: bytes) -> str:
    """What else a file is, by its first bytes; empty if it may be an archive of tensors."""
    if not start:
        return "empty"
    plain = start.lstrip().lower()
    if plain.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "a web page"
    if plain.startswith(b"version https://git-lfs"):
        return "a pointer of Git LFS, in place of the file itself (git lfs pull)"
    if b"\0" not in start and all(byte >= 32 or byte in b"\t\n\r\f" for byte in start):
        return "a text file"
    return ""
