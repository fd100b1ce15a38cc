"""A damaged checkpoint is refused in a sentence, or is as it was: never another state."""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget.runs.checkpoint import MARK, BadCheckpoint, load_checkpoint, save_checkpoint
from fastget.runs.upgrade import FORMAT
from tests.fuzz.mutations import flips, mutations


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {"step": 7, "model": {"w": torch.randn(40, generator=generator)}, "classes": ["a", "b"]}


def same(found: dict[str, Any]) -> bool:
    wanted = state()
    plain = all(found[name] == wanted[name] for name in ("step", "classes"))
    return plain and torch.equal(found["model"]["w"], wanted["model"]["w"])


def refused_or_same(file: Path, contents: Iterable[bytes]) -> tuple[int, int]:
    counts = [0, 0]
    for number, content in enumerate(contents):
        file.write_bytes(content)
        try:
            found = load_checkpoint(file)
        except BadCheckpoint:
            counts[0] += 1
            continue
        assert same(found), number
        counts[1] += 1
    return counts[0], counts[1]


def headers(content: bytes) -> Iterable[int]:
    """The places of everything but the members' content, in steps: what no checksum of the archive covers."""
    directory = content.index(b"PK\x01\x02")
    return range(directory, len(content))


def test_every_bit_counts(tmp_path: Path) -> None:
    """Of the headers all, of the content some: bit 0x10 of an attribute once made a weight of what lay in memory."""
    save_checkpoint(tmp_path / "good.pt", state())
    content = (tmp_path / "good.pt").read_bytes()
    places = [*headers(content), *range(0, content.index(b"PK\x01\x02"), 31)]
    refused, intact = refused_or_same(tmp_path / "bad.pt", flips(content, places))
    assert refused > 0.95 * (refused + intact)  # the mark of the digest alone may go unseen


def test_an_attribute_of_an_older_checkpoint(tmp_path: Path) -> None:
    """One without a digest, as 0.1 wrote it."""
    torch.save({"fastget_format": FORMAT, **state()}, tmp_path / "old.pt")
    content = (tmp_path / "old.pt").read_bytes()
    assert MARK not in content
    assert same(load_checkpoint(tmp_path / "old.pt"))
    refused, intact = refused_or_same(tmp_path / "bad.pt", flips(content, [*headers(content)][::3]))
    assert refused
    assert intact
    with zipfile.ZipFile(tmp_path / "old.pt") as archive:
        names = [info.filename for info in archive.infolist()]
    for name in names:
        at = content.index(b"PK\x01\x02")
        while content[at + 46 : at + 46 + len(name)].decode() != name:
            at = content.index(b"PK\x01\x02", at + 1)
        marked = content[: at + 38] + bytes([content[at + 38] | 0x10]) + content[at + 39 :]
        (tmp_path / "bad.pt").write_bytes(marked)
        with pytest.raises(BadCheckpoint, match="marked as a folder"):
            load_checkpoint(tmp_path / "bad.pt")


@pytest.mark.parametrize("count", [2000, 20_000])
def test_mutations(tmp_path: Path, count: int) -> None:
    save_checkpoint(tmp_path / "good.pt", state())
    refused, intact = refused_or_same(tmp_path / "bad.pt", mutations((tmp_path / "good.pt").read_bytes(), count, 1))
    assert refused > 0.9 * count
    torch.save({"fastget_format": FORMAT, **state()}, tmp_path / "old.pt")
    file = tmp_path / "bad.pt"
    for content in mutations((tmp_path / "old.pt").read_bytes(), count, 2):
        file.write_bytes(content)
        try:
            load_checkpoint(file)
        except BadCheckpoint:
            refused += 1
    assert refused > 0.9 * count + intact
