"""Trees laid out as the paper's data sets, in small, and a pool whose runs need no process of their own."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fastget.commands.main import main
from fastget.data.datasets import DATA_SETS
from fastget.planning.forecast import Pace
from fastget.studies import jobs
from fastget.studies.jobs import Job, Slot
from fastget.studies.reproduce import measure
from tests.pictures import pixels

SIDE = 16
SMALL = [
    "network.name=small", "network.weights=none", f"data.resize={SIDE}", f"data.crop={SIDE}", "train.max_steps=2",
    "train.warmup_steps=1", "train.eval_every=1", "train.batch_size=6", "train.log_every=1", "train.device=cpu",
    "train.tensorboard=false", "train.keep_checkpoints=1", "train.watch=0", "train.threads=1", "data.workers=1",
]  # fmt: skip


def write_tree(root: Path, data: str, per_class: int = 2) -> Path:
    """A data set by its domains' and classes' own names; its lists too, where it has such."""
    known = DATA_SETS[data]
    classes = known.classes or tuple(f"class_{number:03d}" for number in range(known.num_classes))
    for d, domain in enumerate(known.domains):
        lines = []
        for c, name in enumerate(classes):
            folder = root / domain / known.between / name
            folder.mkdir(parents=True)
            for i in range(per_class):
                file = folder / f"frame_{i:04d}.jpg"
                Image.fromarray(pixels(1000 * d + 10 * c + i, SIDE)).save(file)
                lines.append((file.relative_to(root), c, i))
        if data == "visda2017":
            text = "".join(f"{path.relative_to(domain)} {c}\n" for path, c, _ in lines)
            (root / domain / "image_list.txt").write_text(text)
        if known.layout == "ssda lists":
            _write_ssda(root / "txt" / known.ssda, domain, lines)
    return root


def _write_ssda(lists: Path, domain: str, lines: list[tuple[Path, int, int]]) -> None:
    """All as a source; as a target the first 1 or 3 of a class are its shots, and the rest is unlabelled."""
    lists.mkdir(parents=True, exist_ok=True)

    def write(name: str, keep: Callable[[int], bool]) -> None:
        (lists / f"{name}.txt").write_text("".join(f"{path} {c}\n" for path, c, i in lines if keep(i)))

    write(f"labeled_source_images_{domain}", lambda i: True)
    for shots in (1, 3):
        write(f"labeled_target_images_{domain}_{shots}", lambda i, shots=shots: i < shots)  # type: ignore[misc]
        write(f"unlabeled_target_images_{domain}_{shots}", lambda i: i >= 3)


def in_this_process(monkeypatch: pytest.MonkeyPatch, dies_after: int | None = None) -> list[str]:
    """Let the pool run each command here, one by one: a process each would take its seconds to start. The folders of
    those that were started; it dies at once, as by kill -9, when `dies_after` of them are done."""
    started: list[str] = []

    def start(self: jobs.Pool, job: Job, slot: Slot) -> None:
        if len(started) == dies_after:
            raise Died
        started.append(str(job.folder))
        words = jobs.command(job, slot, self.file)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with io.StringIO() as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(words[3:])
            job.log.write_text(said.getvalue())

    monkeypatch.setattr(jobs.Pool, "_start", start)
    monkeypatch.setattr(measure, "short_run", lambda job, slot: Pace(100.0, 2.0, "measured: not here"))
    monkeypatch.setattr(jobs, "POLL", 0.0)
    return started


class Died(BaseException):
    """What nothing here catches."""
