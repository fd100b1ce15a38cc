"""A run's folder: its configuration, environment, metrics, summary, predictions and checkpoints."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save
from torch import Tensor

from fastget.common.files import write_atomically
from fastget.config import Config
from fastget.data.lists import ImageList
from fastget.evaluation.sample import Sampled
from fastget.evaluation.score import Evaluation
from fastget.runs.checkpoint import CheckpointFolder
from fastget.runs.environment import environment
from fastget.runs.sinks import jsonl
from fastget.runs.summary import FILE, SeedsSummary, SeedSummary, read_summary

METRICS, TIMING, LABELS, PREDICTIONS = "metrics.jsonl", "timing.jsonl", "labels.jsonl", "predictions.csv"
BEFORE, AFTER = "features_before.safetensors", "features_after.safetensors"  # adaptation


class RunFolder:
    """config.yaml, environment.json, split.json, metrics.jsonl, timing.jsonl, labels.jsonl, summary.json,
    predictions.csv, features_before.safetensors and _after, checkpoints/."""

    def __init__(self, folder: Path, keep_checkpoints: int) -> None:
        self.folder = folder
        self.checkpoints = CheckpointFolder(folder / "checkpoints", keep_checkpoints)
        self.metrics = folder / METRICS

    @property
    def summary(self) -> SeedSummary | SeedsSummary | None:
        """The summary of a finished run."""
        return read_summary(self.folder)

    def start(self, config: Config, device: torch.device, split: Mapping[str, Any], from_step: int) -> None:
        """Write what the run depends on; drop the metrics past `from_step`, which will come again."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # the place is left out, so that `fastget train --config` repeats the run in another
            again = dataclasses.replace(config, train=dataclasses.replace(config.train, out=None, resume="no"))
            write_atomically(self.folder / "config.yaml", again.to_yaml().encode())
            write_json(self.folder / "environment.json", environment(device))
            write_json(self.folder / "split.json", split)
            for file in (self.metrics, self.folder / TIMING, self.folder / LABELS):
                kept = [line for line in jsonl.read(file) if line["step"] <= from_step] if from_step else []
                write_atomically(file, "".join(json.dumps(line) + "\n" for line in kept).encode())
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
        stored = yaml.safe_load((self.folder / "config.yaml").read_text(encoding="utf-8"))
        return stored if isinstance(stored, dict) else {}

    def finish(self, summary: SeedSummary, target: ImageList, final: Evaluation) -> None:
        """predictions.csv and summary.json, which marks the run as done."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["path", "label", "prediction", "confidence"])
        for i, prediction, confidence in zip(
            final.index.tolist(), final.predictions.tolist(), final.confidence.tolist(), strict=True
        ):
            label = int(target.labels[i])
            truth = target.classes[label] if label >= 0 else ""
            writer.writerow([target.paths[i], truth, target.classes[prediction], f"{confidence:.4f}"])
        write_atomically(self.folder / PREDICTIONS, text.getvalue().encode())
        write_json(self.folder / FILE, summary.to_dict())


def read_predictions(folder: Path) -> dict[str, str]:
    """Path -> predicted class, of a run's predictions.csv."""
    with (folder / PREDICTIONS).open(encoding="utf-8", newline="") as stream:
        return {row["path"]: row["prediction"] for row in csv.DictReader(stream)}


def write_json(file: Path, content: Any) -> None:
    write_atomically(file, (json.dumps(content, indent=2) + "\n").encode())


def choose_folder(config: Config) -> Path:
    """--out, or a new folder under runs/ named after the task; with --resume auto the newest one of that name."""
    if config.train.out is not None:
        folder = Path(config.train.out)
        _refuse_unwritable(folder)
        taken = [name for name in (FILE, METRICS, "checkpoints") if (folder / name).exists()]
        taken += [f.name for f in folder.glob("seed-*")] if folder.is_dir() else []
        if taken and config.train.resume == "no":
            raise ValueError(
                f"{folder} already holds a run ({taken[0]}): go on with it by --resume auto, or choose another --out"
            )
        return folder
    data = config.data
    stem = "-".join(Path(str(part)).stem for part in (data.name, data.source, data.target) if part)
    base = Path("runs") / f"{stem}-{config.title.replace(' on ', '-')}"
    return newest_folder(base) if config.train.resume == "auto" else new_folder(base)


def _refuse_unwritable(folder: Path) -> None:
    """Before anything else is done: whether the folder can be written, or made in the nearest one that is there."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "no permission" if there.is_dir() else f"{there} is a file"
        raise ValueError(f"cannot write to the run's folder {folder}: {why}; choose another one by --out")


def new_folder(base: Path) -> Path:
    """`base`, or the first of base-2, base-3 ... that isn't there yet."""
    return _numbered(base, _count(base) + 1)


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
