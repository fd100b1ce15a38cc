"""Checkpoints: written whole or not at all, read back without running any code."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fastget.common.archive import START, damage_in, other_content
from fastget.common.files import write_atomically
from fastget.common.text import first_line
from fastget.runs.upgrade import FORMAT, upgrade

FINAL = "final.pt"
DAMAGED = ".damaged"  # what a checkpoint's name ends with that was set aside
MARK, NO_COMMENT = b"fastget sha256 ", b"\0\0"


class BadCheckpoint(ValueError):
    """A checkpoint that cannot be used; the text says why."""


def save_checkpoint(file: Path, state: dict[str, Any]) -> None:
    """Tensors and plain values only. OSError (a full disk, say) leaves what was there before.

    Its end, a zip archive's comment, is a digest of all before it: the archive's own checksums are of its members'
    content alone, and a bit of their headers may turn a weight into what happens to lie in memory."""
    buffer = io.BytesIO()
    torch.save({"fastget_format": FORMAT, **state}, buffer)
    comment = MARK + hashlib.sha256(buffer.getbuffer()).hexdigest().encode()
    buffer.seek(-len(NO_COMMENT), io.SEEK_END)
    buffer.write(len(comment).to_bytes(len(NO_COMMENT), "little") + comment)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, buffer.getvalue())


def sha256_of(file: Path, size: int | None = None, end: bytes = b"") -> str:
    """The digest of a file, or of its first `size` bytes and `end`."""
    digest = hashlib.sha256()
    left = file.stat().st_size if size is None else size
    with file.open("rb") as stream:
        while left and (part := stream.read(min(left, 1 << 20))):
            digest.update(part)
            left -= len(part)
    digest.update(end)
    return digest.hexdigest()


def _refuse_damaged(file: Path) -> None:
    """By the digest, or, of a version that wrote none, by the archive's own checksums and headers."""
    length = len(MARK) + 64
    size = file.stat().st_size - length - len(NO_COMMENT)
    with file.open("rb") as stream:
        stream.seek(max(0, size + len(NO_COMMENT)))
        comment = stream.read()
    if comment.startswith(MARK):
        if sha256_of(file, size, NO_COMMENT) != comment[len(MARK) :].decode(errors="replace"):
            raise BadCheckpoint(f"{file} is damaged: its checksum is wrong")
        return
    with file.open("rb") as stream:
        what = other_content(stream.read(START))
    if what:
        raise BadCheckpoint(f"{file} is {what}, not a checkpoint")
    if damage := damage_in(file):
        raise BadCheckpoint(f"{file} is damaged: {damage}")


def load_checkpoint(file: Path) -> dict[str, Any]:
    """The state in `file`; BadCheckpoint says what is wrong with it. No object of the file is ever run."""
    if not file.is_file():
        raise BadCheckpoint(f"no checkpoint {file}")
    try:
        _refuse_damaged(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except BadCheckpoint:
        raise
    except pickle.UnpicklingError as error:
        raise BadCheckpoint(
            f"{file} holds a pickled object, which could run code: it is not loaded ({first_line(error)})"
        ) from error
    except Exception as error:  # a damaged archive makes its readers raise almost anything
        raise BadCheckpoint(f"{file} is damaged or no checkpoint: {first_line(error)}") from error
    if not isinstance(state, dict):
        raise BadCheckpoint(f"{file} is not a checkpoint of fastget: it holds a {type(state).__name__}")
    try:
        return upgrade(state)
    except ValueError as error:
        raise BadCheckpoint(f"{file} cannot be used: {error}") from error


class CheckpointFolder:
    """A run's checkpoints: step_NNNNNNNN.pt for the latest few steps, and final.pt."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self.restored = folder  # the file that `restore` took

    def save(self, step: int, state: dict[str, Any]) -> Path:
        file = self.folder / f"step_{step:08d}.pt"
        save_checkpoint(file, state)
        done = [other for other in self.steps() if other.name <= file.name]  # a later one was passed over by `restore`
        for old in (*done[self.keep :], *self.folder.glob(".*.part*")):  # and what a killed run left half-made
            old.unlink(missing_ok=True)
        return file

    def save_as(self, name: str, state: dict[str, Any]) -> Path:
        """final.pt, or selected.pt."""
        save_checkpoint(self.folder / name, state)
        return self.folder / name

    def steps(self) -> list[Path]:
        """The step checkpoints, newest first."""
        if not self.folder.is_dir():
            return []
        return sorted((f for f in self.folder.iterdir() if re.fullmatch(r"step_\d{8}\.pt", f.name)), reverse=True)

    def files(self) -> list[Path]:
        """All that a run can go on from, newest first."""
        final = self.folder / FINAL
        return [final, *self.steps()] if final.exists() else self.steps()

    def restore(self, load: Callable[[dict[str, Any]], None], report: Callable[[str], None]) -> dict[str, Any] | None:
        """Hand the newest checkpoint that is intact and fits to `load`, which raises ValueError if it does not fit.

        Those passed over are reported, and damaged ones get another name, so that they do not stand among those that
        are kept. Raises what `load` raised if there are intact ones and none fits.
        """
        there = self.files()
        refused: ValueError | None = None
        for file in there:
            try:
                state = load_checkpoint(file)
                load(state)
            except BadCheckpoint as error:
                report(f"{error}; {self._set_aside(file)}trying the one before it")
            except ValueError as error:
                refused = refused or error
                report(f"{file}: {error}; trying the one before it")
            else:
                self.restored = file
                return state
        if refused is not None:
            raise refused
        if there or any(self.folder.glob(f"*{DAMAGED}")):
            report(f"no checkpoint in {self.folder} is intact: starting over")
        return None

    def _set_aside(self, file: Path) -> str:
        """Rename a damaged file; in words, what became of it."""
        aside = file.with_name(file.name + DAMAGED)
        try:
            file.replace(aside)
        except OSError:
            return ""  # a folder that cannot be written is told of when the run starts
        return f"it is now {aside.name}; "
