"""Checkpoints: whole or not at all, and never a way to run code."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget.common.files import made_whole
from fastget.runs.checkpoint import BadCheckpoint, CheckpointFolder, load_checkpoint, save_checkpoint


class Payload:
    """What an attacker would pickle."""

    def __reduce__(self) -> Any:
        return (os.system, ("touch ran",))


def test_round_trip(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a" / "x.pt", {"step": 3, "t": torch.arange(4.0)})
    state = load_checkpoint(tmp_path / "a" / "x.pt")
    assert state["step"] == 3
    assert torch.equal(state["t"], torch.arange(4.0))
    assert [f.name for f in (tmp_path / "a").iterdir()] == ["x.pt"]


def test_damage_is_named(tmp_path: Path) -> None:
    good = tmp_path / "good.pt"
    save_checkpoint(good, {"t": torch.randn(1000)})
    content = good.read_bytes()
    cut, flipped, text, other = (tmp_path / name for name in ("cut.pt", "flip.pt", "text.pt", "other.pt"))
    cut.write_bytes(content[: len(content) // 2])
    middle = content.index(torch.load(good, weights_only=True)["t"].numpy().tobytes()) + 100
    flipped.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    text.write_text("hello")
    torch.save({"t": 1}, other)
    for file, message in (
        (cut, "damaged"),
        (flipped, "checksum"),
        (text, "is a text file, not a checkpoint"),
        (other, "not a checkpoint of fastget"),
        (tmp_path / "none.pt", "no checkpoint"),
    ):
        with pytest.raises(BadCheckpoint, match=message):
            load_checkpoint(file)


def test_a_pickled_object_is_not_run(tmp_path: Path) -> None:
    torch.save({"fastget_format": 1, "x": Payload()}, tmp_path / "evil.pt")
    with pytest.raises(BadCheckpoint, match="could run code"):
        load_checkpoint(tmp_path / "evil.pt")
    assert not Path("ran").exists()


def test_the_latest_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (5, 10, 15):
        folder.save(step, {"step": step})
    assert [f.name for f in folder.steps()] == ["step_00000015.pt", "step_00000010.pt"]


def test_what_a_killed_run_left_half_made_goes(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    with made_whole(tmp_path / "step_00000005.pt") as making:
        making.write_bytes(b"half")
    (tmp_path / "step_00000005.pt").rename(making)  # as if it had been killed just before it was renamed
    folder.save(10, {"step": 10})
    assert [f.name for f in tmp_path.iterdir()] == ["step_00000010.pt"]


def test_newest_intact(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    said: list[str] = []
    loaded: list[int] = []

    def load(state: dict[str, Any]) -> None:
        if state["step"] == 10:
            raise ValueError("of another network")
        loaded.append(state["step"])

    assert folder.restore(load, said.append) is None
    assert not said
    for step in (5, 10, 15):
        folder.save(step, {"step": step})
    folder.steps()[0].write_bytes(b"half")
    state = folder.restore(load, said.append)
    assert state is not None
    assert (state["step"], loaded) == (5, [5])
    assert "step_00000015.pt" in said[0]
    assert "of another network" in said[1]
    (tmp_path / "step_00000005.pt").unlink()
    with pytest.raises(ValueError, match="of another network"):
        folder.restore(load, said.append)
    (tmp_path / "step_00000010.pt").unlink()
    assert folder.restore(load, said.append) is None
    assert "starting over" in said[-1]


def test_any_damage_is_a_bad_checkpoint(tmp_path: Path) -> None:
    good = tmp_path / "good.pt"
    save_checkpoint(good, {"t": torch.randn(50), "words": ["a", "b"]})
    content, chance = good.read_bytes(), random.Random(0)
    for _ in range(100):
        at = chance.randrange(len(content))
        broken = content[:at] if chance.random() < 0.3 else content[:at] + b"\xff\xfe" + content[at + 2 :]
        (tmp_path / "bad.pt").write_bytes(broken)
        try:
            load_checkpoint(tmp_path / "bad.pt")
        except BadCheckpoint:
            continue  # anything else would end a resume


def test_a_full_disk_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.pt"
    save_checkpoint(file, {"step": 1})

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(file, {"step": 2})
    assert load_checkpoint(file)["step"] == 1
    assert [f.name for f in tmp_path.iterdir()] == ["x.pt"]
