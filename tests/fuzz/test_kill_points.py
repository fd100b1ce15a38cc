"""Killed at every moment at which the disk changes for good: the run goes on to the same end, to the bit.

Every fsync, rename, link and removal is hooked, and the folder is copied before and after it: what SIGKILL would leave.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget.runs.checkpoint import load_checkpoint
from fastget.training.train import train
from tests.features.support import on_features, small_store
from tests.support import metrics

HOOKED = ("fsync", "replace", "rename", "link", "unlink")
SHORT: dict[str, Any] = {"train__warmup_steps": 1, "train__log_every": 2}
SHORT |= {"train__checkpoint_every": 1, "train__keep_checkpoints": 1, "train__select": "entropy"}


def content(folder: Path) -> str:
    """A digest of all files but locks, whose words differ from run to run."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and ".lock" not in file.name:
            digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


class Camera:
    """Copies of a folder as it was at each hooked call, alike ones once."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self.folder, self.copies, self.seen, self.calls = folder, copies, set[str](), 0

    def look(self) -> None:
        if not self.folder.is_dir():
            return
        self.calls += 1
        if (found := content(self.folder)) not in self.seen:
            self.seen.add(found)
            shutil.copytree(self.folder, self.copies / f"{len(self.seen):03d}")

    def hook(self, patch: pytest.MonkeyPatch) -> None:
        for name in HOOKED:
            real = getattr(os, name)

            def hooked(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
                self.look()
                result = _real(*args, **kwargs)
                self.look()
                return result

            patch.setattr(os, name, hooked)


@pytest.mark.parametrize("steps", [2, 6])
def test_it_goes_on_from_every_one(tmp_path: Path, steps: int) -> None:
    root = small_store(tmp_path / "small").folder
    settings = {**SHORT, "train__max_steps": steps, "train__eval_every": steps // 2}
    camera = Camera(Path("run"), tmp_path / "copies")
    with pytest.MonkeyPatch.context() as patch:
        camera.hook(patch)
        whole = train(on_features(root, "run", **settings), quiet=True).folder
    copies = sorted((tmp_path / "copies").iterdir())
    assert camera.calls > len(copies) > 20
    wanted = load_checkpoint(whole / "checkpoints" / "final.pt")["model"]
    for copy in copies:
        train(on_features(root, copy, train__resume="auto", **settings), quiet=True)
        assert metrics(copy) == metrics(whole), copy
        found = load_checkpoint(copy / "checkpoints" / "final.pt")["model"]
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), copy
        for name in ("predictions.csv", "summary.json", "config.yaml", "split.json"):
            assert (copy / name).read_bytes() == (whole / name).read_bytes(), (copy, name)
        files, all_files = ({str(f.relative_to(at)) for f in at.rglob("*")} for at in (copy, whole))
        assert files >= all_files
        more = files - all_files  # a checkpoint that was about to go may stay, no rest of a half-made one
        assert all(name.startswith("checkpoints/step_") for name in more), (copy, more)
