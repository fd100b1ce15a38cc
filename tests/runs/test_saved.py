"""What is on disk: nothing is said to be saved that is not, and no damage passes for a checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
import zipfile
from pathlib import Path

from torch import nn

from tests.commandline import full_disk, on_features, on_folders, say, watching
from tests.pictures import write_domains


def test_a_signal_on_a_full_disk(stored: Path) -> None:
    """`ulimit -f`: no checkpoint can be written."""
    seen: list[int] = []
    with full_disk() as fill:

        def ask(module: nn.Module, images: int) -> None:
            seen.append(images)
            if len(seen) == 3:
                fill(4000)
                os.kill(os.getpid(), signal.SIGTERM)

        with watching(ask):
            done = say(*on_features(stored, "train.checkpoint_every=100"))
    assert not list(Path("run").rglob("*.pt"))
    assert "the run is saved" not in done.words, f"nothing is on disk, and this is said: {done.words[-90:]}"
    assert done.code == 1, done.words
    assert "could not be saved" in done.words


def test_what_is_on_disk_where_the_first_images_are_bad(tmp_path: Path) -> None:
    """Damage inside, which the look at headers and ends passes: the run gives up after step 0."""
    data = write_domains(tmp_path / "data", per_class=4)
    for file in (data / "photo").rglob("*.*g"):
        content = bytearray(file.read_bytes())
        start = content.index(b"IDAT") + 4 if file.suffix == ".png" else content.index(b"\xff\xda") + 14
        content[start : start + 40] = bytes(40)
        file.write_bytes(content)
    done = say(*on_folders(data))
    assert done.code == 1, done.words
    assert "after step 0, which is saved" in done.words
    found = [file.name for file in Path("run").rglob("*.pt")]
    assert found == ["step_00000000.pt"], f"it is said that step 0 is saved, and on disk is {found}"


def marked_as_a_folder(file: Path) -> str:
    """Flip bit 0x10 of the attributes of the largest entry of a zip archive; its name."""
    with zipfile.ZipFile(file) as archive:
        name = max(archive.infolist(), key=lambda info: info.file_size).filename
    content = bytearray(file.read_bytes())
    at = content.index(b"PK\x01\x02")  # the directory's entries, of which the name stands at 46
    while content[at + 46 : at + 46 + len(name)] != name.encode():
        at = content.index(b"PK\x01\x02", at + 1)
    content[at + 38] ^= 0x10
    file.write_bytes(content)
    return name


def test_one_bit_makes_no_other_network(place: Path) -> None:
    """The entry was a folder for torch, and the weight whatever lay in memory."""
    shutil.copy(place / "run" / "checkpoints" / "final.pt", "bad.pt")
    name = marked_as_a_folder(Path("bad.pt"))
    done = say("predict", "--checkpoint", "bad.pt", place / "data" / "sketch" / "ant", "--out", "found.csv")
    assert done.code == 2, f"it is taken for an intact checkpoint, with {name} of whatever lay in memory"
    assert "bad.pt is damaged" in done.words
    assert not Path("found.csv").exists()
