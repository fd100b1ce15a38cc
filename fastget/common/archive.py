"""Torch's files are zip archives: whether one is as it was written."""

from __future__ import annotations

import zipfile
from pathlib import Path

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
