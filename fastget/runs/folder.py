"""A run's folder: its configuration, environment, metrics, summary, predictions and checkpoints."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fastget.common.files import write_atomically, write_csv
from fastget.common.lock import held
from fastget.common.text import and_more, from_csv_cell
from fastget.config import Config
from fastget.config.yaml_file import read_yaml
from fastget.data.lists import ImageList
from fastget.evaluation.classes import Classes
from fastget.evaluation.sample import Sampled
from fastget.evaluation.score import Evaluation
from fastget.runs.checkpoint import CheckpointFolder
from fastget.runs.environment import environment
from fastget.runs.sinks import jsonl
from fastget.runs.sinks.classes import draw_classes, made_of, write_classes
from fastget.runs.summary import FILE, SeedsSummary, SeedSummary, read_summary

METRICS, TIMING, LABELS = "metrics.jsonl", "timing.jsonl", "labels.jsonl"
PREDICTIONS, SPLIT = "predictions.csv", "split.json"
BEFORE, AFTER = "features_before.safetensors", "features_after.safetensors"  # adaptation


class RunFolder:
    """config.yaml, environment.json, split.json, metrics.jsonl, timing.jsonl, labels.jsonl, summary.json,
    predictions.csv, classes.csv, classes.png, features_before.safetensors and _after, checkpoints/."""

    def __init__(self, folder: Path, keep_checkpoints: int) -> None:
        self.folder = folder
        self.checkpoints = CheckpointFolder(folder / "checkpoints", keep_checkpoints)
        self.metrics = folder / METRICS

    @property
    def summary(self) -> SeedSummary | SeedsSummary | None:
        """The summary of a finished run."""
        return read_summary(self.folder)

    def start(
        self,
        config: Config,
        device: torch.device,
        split: Mapping[str, Any],
        from_step: int,
        backbone: Mapping[str, str],  # its record
        owed: bool = False,
    ) -> None:
        """Write what the run depends on; drop the metrics past `from_step`, which will come again, and the evaluation
        of that step if it is `owed`."""

        def kept(line: dict[str, Any]) -> bool:
            return line["step"] < from_step or (line["step"] == from_step and not (owed and "accuracy" in line))

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # the place is left out, so that `fastget train --config` repeats the run in another
            again = dataclasses.replace(
                config, train=dataclasses.replace(config.train, out=None, resume="no", lock="heed")
            )
            write_atomically(self.folder / "config.yaml", again.to_yaml().encode())
            write_json(self.folder / "environment.json", {**environment(device), "backbone": dict(backbone)})
            write_json(self.folder / SPLIT, split)
            for file in (self.metrics, self.folder / TIMING, self.folder / LABELS):
                lines = filter(kept, jsonl.read(file)) if from_step else ()
                write_atomically(file, "".join(json.dumps(line) + "\n" for line in lines).encode())
            for place in (self.folder, self.checkpoints.folder):
                for rest in place.glob(".*.part*"):
                    rest.unlink(missing_ok=True)  # of a run that was killed
        except OSError as error:
            raise ValueError(
                f"cannot write to the run's folder {self.folder}: {error.strerror}; choose another one by --out"
            ) from error

    def log(self, **values: Any) -> None:
        """One object of metrics.jsonl: all of it but images_per_second is the same for the same seed."""
        jsonl.append(self.metrics, values)

    def log_times(self, **values: Any) -> None:
        """One object of timing.jsonl: what differs from run to run."""
        jsonl.append(self.folder / TIMING, values)

    def log_labels(self, step: int, quality: Mapping[str, Any], shares: Mapping[str, Tensor]) -> None:
        """One object of labels.jsonl: what pseudo-labels are worth, and the shares that classes are taken to have."""
        rounded = {tag: [round(share, 6) for share in value.tolist()] for tag, value in shares.items()}
        jsonl.append(self.folder / LABELS, {"step": step, "quality": quality, "shares": rounded})

    def keep_features(self, name: str, sampled: Sampled) -> None:
        """The features of the target's sample, and what the network said of it."""
        tensors = {key: value.contiguous() for key, value in sampled.tensors().items()}
        write_atomically(self.folder / name, save(tensors))

    def stored_config(self) -> dict[str, dict[str, Any]]:
        """The settings of the run in this folder."""
        stored = read_yaml(self.folder / "config.yaml")
        return stored if isinstance(stored, dict) else {}

    def refuse_other_data(self, split: Mapping[str, Any]) -> None:
        """ValueError if the run in this folder was started on other images than these. A moved root is none."""
        file = self.folder / SPLIT
        if not file.is_file():
            return
        try:
            differing = other_data(json.loads(file.read_text(encoding="utf-8")), split)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(
                f"{file} is damaged ({error}): remove it to go on without a look at whether the data are the same"
            ) from error
        if differing:
            raise ValueError(
                f"the run in {self.folder} was started on other data: {'; '.join(differing)}. Give it the same data, "
                "or choose another --out"
            )

    def finish(self, summary: SeedSummary, target: ImageList, final: Evaluation, found: Classes) -> None:
        """predictions.csv, classes.csv with its picture where it can be told, and summary.json, which marks the run as
        done."""
        rows = [["path", "label", "prediction", "confidence"]]
        for i, prediction, confidence in zip(
            final.index.tolist(), final.predictions.tolist(), final.confidence.tolist(), strict=True
        ):
            label = int(target.labels[i])
            truth = target.classes[label] if label >= 0 else ""
            rows.append([target.paths[i], truth, target.classes[prediction], f"{confidence:.4f}"])
        write_csv(self.folder / PREDICTIONS, rows)
        if found.untold:
            for name in ("classes.csv", "classes.png"):
                (self.folder / name).unlink(missing_ok=True)
        else:
            write_classes(self.folder / "classes.csv", found)
            draw_classes(self.folder / "classes.png", found, made_of(target.name))
        write_json(self.folder / FILE, summary.to_dict())


def other_data(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """In words, where two protocols (split.json) tell of other images. What one of them does not tell is left open."""
    words = []
    for role, now in here.get("lists", {}).items():
        then = there.get("lists", {}).get(role, now)
        if then["images"] != now["images"]:
            words.append(f"{role} ({now['name']}) had {then['images']:,} images there, and has {now['images']:,} here")
        elif then["sha256"] != now["sha256"]:
            words.append(f"{role} ({now['name']}) has as many images, and other paths or labels")
    out = [sorted(Path(bad["path"]).name for bad in split.get("left_out", [])) for split in (there, here)]
    if out[0] != out[1]:
        odd = sorted(set(out[0]) ^ set(out[1])) or out[1]
        words.append(f"{len(out[0]):,} bad images were left out there, {len(out[1]):,} here ({and_more(odd)})")
    if there.get("features", here.get("features")) != here.get("features"):
        words.append("the features were made otherwise")
    return words


def read_predictions(folder: Path) -> dict[str, str]:
    """Path -> predicted class, of a run's predictions.csv."""
    with (folder / PREDICTIONS).open(encoding="utf-8", newline="") as stream:
        return {from_csv_cell(row["path"]): from_csv_cell(row["prediction"]) for row in csv.DictReader(stream)}


def write_json(file: Path, content: Any) -> None:
    write_atomically(file, (json.dumps(content, indent=2) + "\n").encode())


@contextmanager
def held_folder(config: Config) -> Iterator[Path]:
    """The folder of a run, which this process alone writes to in the block: --out, or a new one under runs/ named after
    the task; with --resume auto the newest one of that name."""
    out = config.train.out
    if out is not None:
        _refuse_unwritable(Path(out))
    with ExitStack() as stack:
        try:
            folder, made = (Path(out), False) if out is not None else _named_after_the_task(config)
            stack.enter_context(held(folder, take=config.train.lock == "take", made=made))
        except OSError as error:
            where = out or "runs/"
            raise ValueError(
                f"cannot write to the run's folder {where}: {error.strerror}; choose another one by --out"
            ) from error
        if config.train.resume == "no":
            _refuse_taken(folder)
        yield folder


def _named_after_the_task(config: Config) -> tuple[Path, bool]:
    """The folder, and whether it was made here."""
    data = config.data
    stem = "-".join(Path(str(part)).stem for part in (data.name, data.source, data.target) if part)
    base = Path("runs") / f"{stem}-{config.title.replace(' on ', '-')}"
    return (newest_folder(base), False) if config.train.resume == "auto" else (new_folder(base), True)


def _refuse_taken(folder: Path) -> None:
    taken = [name for name in (FILE, METRICS, "checkpoints") if (folder / name).exists()]
    taken += [f.name for f in folder.glob("seed-*")]
    if taken:
        raise ValueError(
            f"{folder} already holds a run ({taken[0]}): go on with it by --resume auto, or choose another --out"
        )


def _refuse_unwritable(folder: Path) -> None:
    """Before anything else is done: whether the folder can be written, or made in the nearest one that is there."""
    if folder.is_symlink() and not folder.exists():
        raise ValueError(f"cannot write to the run's folder {folder}: it is a link to nowhere; choose another by --out")
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "no permission" if there.is_dir() else f"{there} is a file"
        raise ValueError(f"cannot write to the run's folder {folder}: {why}; choose another one by --out")


def new_folder(base: Path) -> Path:
    """`base`, or the first of base-2, base-3 ... that isn't there yet, made: of two processes each has its own."""
    base.parent.mkdir(parents=True, exist_ok=True)
    while True:
        folder = _numbered(base, _count(base) + 1)
        with suppress(FileExistsError):
            folder.mkdir()
            return folder


def newest_folder(base: Path) -> Path:
    """The last of base, base-2, base-3 ... that is there; `base` if none is."""
    return _numbered(base, max(1, _count(base)))


def _count(base: Path) -> int:
    number = 0
    while _numbered(base, number + 1).exists():
        number += 1
    return number


def _numbered(base: Path, number: int) -> Path:
    return base if number == 1 else base.with_name(f"{base.name}-{number}")
