"""Checkpoints: written whole or not at all, read back without running any code."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fastget.common.files import write_atomically
from fastget.runs.old import FORMAT, upgrade

FINAL = "final.pt"


class BadCheckpoint(ValueError):
    """A checkpoint that cannot be used; the text says why."""


def save_checkpoint(file: Path, state: dict[str, Any]) -> None:
    """Tensors and plain values only. OSError (a full disk, say) leaves what was there before."""
    buffer = io.BytesIO()
    torch.save({"fastget_format": FORMAT, **state}, buffer)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, buffer.getvalue())


def load_checkpoint(file: Path) -> dict[str, Any]:
    """The state in `file`; BadCheckpoint says what is wrong with it. No object of the file is ever run."""
    if not file.is_file():
        raise BadCheckpoint(f"no checkpoint {file}")
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # torch itself does not compare the checksums
        if damaged is not None:
            raise BadCheckpoint(f"{file} is damaged: the checksum of {damaged} is wrong")
        state = torch.load(file, map_location="cpu", weights_only=True)
    except BadCheckpoint:
        raise
    except pickle.UnpicklingError as error:
        raise BadCheckpoint(
            f"{file} holds a pickled object, which could run code: it is not loaded ({_first_line(error)})"
        ) from error
    except Exception as error:  # a damaged archive makes its readers raise almost anything
        raise BadCheckpoint(f"{file} is damaged or no checkpoint: {_first_line(error)}") from error
    if not isinstance(state, dict):
        raise BadCheckpoint(f"{file} is not a checkpoint of fastget: it holds a {type(state).__name__}")
    try:
        return upgrade(state)
    except ValueError as error:
        raise BadCheckpoint(f"{file} cannot be used: {error}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class CheckpointFolder:
    """A run's checkpoints: step_NNNNNNNN.pt for the latest few steps, and final.pt."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def save(self, step: int, state: dict[str, Any]) -> Path:
        file = self.folder / f"step_{step:08d}.pt"
        save_checkpoint(file, state)
        for old in (*self.steps()[self.keep :], *self.folder.glob(".*.part*")):  # and what a killed run left half-made
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

        Those passed over are reported. Raises what `load` raised if there are intact ones and none fits.
        """
        refused: ValueError | None = None
        for file in self.files():
            try:
                state = load_checkpoint(file)
                load(state)
            except ValueError as error:
                if not isinstance(error, BadCheckpoint):
                    refused = refused or error
                report(f"{error if isinstance(error, BadCheckpoint) else f'{file}: {error}'}; trying the one before it")
            else:
                return state
        if refused is not None:
            raise refused
        if self.files():
            report(f"no checkpoint in {self.folder} is intact: starting over")
        return None
