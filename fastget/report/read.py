"""What run folders hold, for reports: one run's files, and runs that differ in nothing but the seed as one group."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fastget.config import free_fields
from fastget.config.combinations import title_of
from fastget.runs.folder import AFTER, BEFORE, LABELS, METRICS, PREDICTIONS, TIMING
from fastget.runs.sinks import jsonl
from fastget.runs.summary import SeedSummary, read_summary

CONFIG, CLASSES = "config.yaml", "classes.csv"
# beside what no figure depends on: what is a seed's own, and threads, which a study shares out
OF_A_SEED = {"train.seeds", "data.split_seed", "train.threads"}
NAMED = ("method.name", "method.base", "data.name", "data.setting", "data.source", "data.target", "data.imbalanced")


class PredictedImage(NamedTuple):
    """A line of predictions.csv."""

    path: str
    label: str  # empty: not known
    prediction: str
    confidence: float


@dataclass(frozen=True)
class Run:
    """One seed's run. Files that an earlier version did not write, or an unfinished run has not, are empty."""

    folder: Path
    config: Mapping[str, Mapping[str, Any]]
    summary: SeedSummary | None  # None: it has not ended
    metrics: Sequence[Mapping[str, Any]]
    timing: Sequence[Mapping[str, Any]]
    labels: Sequence[Mapping[str, Any]]  # of the pseudo-labels, an evaluation each
    predictions: Sequence[PredictedImage]

    def value(self, key: str, default: Any = None) -> Any:
        """A field of its configuration, by section.field."""
        section, _, name = key.partition(".")
        return self.config.get(section, {}).get(name, default)

    @property
    def title(self) -> str:
        return title_of(str(self.value("method.name")), str(self.value("method.base", "plain")))

    @property
    def seed(self) -> int:
        return self.summary.seed if self.summary is not None else int((self.value("train.seeds") or [0])[0])

    @property
    def classes(self) -> list[str]:
        """Their names, in order; none of a run that has not ended."""
        return list(self.summary.per_class_accuracy) if self.summary is not None else []

    @cached_property
    def labelled(self) -> bool:
        """Whether every image of the target has a label to compare with."""
        return bool(self.predictions) and all(row.label for row in self.predictions)

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        return [line for line in self.metrics if "entropy" in line or "accuracy" in line]

    @property
    def logs(self) -> list[Mapping[str, Any]]:
        return [line for line in self.metrics if "loss" in line]

    @property
    def steps(self) -> int:
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """(N, 2) label and prediction of each image as class numbers; label -1 where it is not known."""
        number = {name: i for i, name in enumerate(self.classes)}
        pairs = [(number.get(row.label, -1), number.get(row.prediction, -1)) for row in self.predictions]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def true_shares(self) -> NDArray[np.float64] | None:
        """(C,) of the target's labels; None where they are not known."""
        if not self.labelled:
            return None
        return np.bincount(self.pairs[:, 0], minlength=len(self.classes)) / len(self.pairs)

    @cached_property
    def estimates(self) -> list[dict[str, str]]:
        """classes.csv, a row a class in their order: share, low, high, probably_absent ...; or none of it."""
        file = self.folder / CLASSES
        if not file.is_file():
            return []
        with file.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        return rows if len(rows) == len(self.classes) else []

    @property
    def untold_classes(self) -> str:
        """What is not told of the classes that the target has, and why, in words; empty: all is told."""
        found = (self.summary.classes if self.summary is not None else None) or {}
        if found.get("untold"):
            return f"Which classes {self.value('data.target')} has is not told: {found['untold']}."
        if "probably_absent" in found and found["probably_absent"] is None:
            return "Which classes are absent cannot be known: the predictions have collapsed."
        return ""

    def environment(self) -> dict[str, Any]:
        """Versions, device and commit."""
        file = self.folder / "environment.json"
        return dict(_json(file)) if file.is_file() else {}

    def sample(self, which: str) -> dict[str, NDArray[Any]] | None:
        """features, predictions, confidence, labels and place of the target's draw, before or after adaptation."""
        file = self.folder / {"before": BEFORE, "after": AFTER}[which]
        if not file.is_file():
            return None
        try:
            return dict(load_file(file))
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged ({error}): remove it to go on without what it shows") from error


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    name: str
    runs: list[Run]


def read_run(folder: Path) -> Run:
    """The run in a folder."""
    try:
        config = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder / CONFIG} is damaged: {error}") from error
    if not isinstance(config, dict) or not all(isinstance(section, dict) for section in config.values()):
        raise ValueError(f"{folder / CONFIG} is no run's configuration: expected sections of fields")
    summary = read_summary(folder)
    return Run(
        folder=folder,
        config=config,
        summary=summary if isinstance(summary, SeedSummary) else None,
        metrics=jsonl.read(folder / METRICS),
        timing=jsonl.read(folder / TIMING),
        labels=jsonl.read(folder / LABELS),
        predictions=_predictions(folder / PREDICTIONS) if summary is not None else [],
    )


def find_runs(places: Sequence[Path]) -> list[Run]:
    """The runs in these folders: a run's own, those of its seeds, or all of a study's. Each once, in this order."""
    found: dict[Path, Path] = {}
    for place in places:
        if not place.is_dir():
            raise ValueError(f"no folder {place}: give a run's folder, as `fastget train` writes it")
        here = (
            [place] if _is_run(place) else sorted(file.parent for file in place.rglob(CONFIG) if _is_run(file.parent))
        )
        if not here:
            raise ValueError(f"{place} holds no run: expected {CONFIG} and {METRICS} in it, or in folders below it")
        found |= {folder.resolve(): folder for folder in here}
    return [read_run(folder) for folder in found.values()]


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / METRICS).is_file()


def _predictions(file: Path) -> list[PredictedImage]:
    if not file.is_file():
        return []
    try:
        with file.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
            lines = csv.DictReader(stream)
            return [PredictedImage(li["path"], li["label"], li["prediction"], float(li["confidence"])) for li in lines]
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{file} is damaged ({error!r}): expected path, label, prediction, confidence") from error


def _json(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is damaged ({error}): remove it to go on without it") from error
    return content if isinstance(content, dict) else {}


# --- groups --------------------------------------------------------------------------------------


def group(runs: Sequence[Run]) -> list[Group]:
    """The runs as groups, each named by what tells it from the others."""
    settings = [_settings(run) for run in runs]
    groups: dict[str, list[int]] = {}
    for i, flat in enumerate(settings):
        groups.setdefault(json.dumps(flat, sort_keys=True, default=str), []).append(i)
    firsts = [members[0] for members in groups.values()]
    names = _names([runs[i] for i in firsts], [settings[i] for i in firsts])
    return [Group(name, [runs[i] for i in members]) for name, members in zip(names, groups.values(), strict=True)]


def _settings(run: Run) -> dict[str, Any]:
    flat = {f"{section}.{name}": value for section, fields in run.config.items() for name, value in fields.items()}
    apart = free_fields() | OF_A_SEED
    return {key: value for key, value in flat.items() if key not in apart}


def _names(runs: list[Run], settings: list[dict[str, Any]]) -> list[str]:
    """The method's name, and what else differs: the task, the setting, single fields."""
    tasks = [f"{run.value('data.source')} → {run.value('data.target')}" for run in runs]
    kinds = [protocol_of(run) for run in runs]
    names = [run.title for run in runs]
    for parts in (kinds, tasks):
        if len(set(parts)) > 1:
            names = [f"{name}, {part}" for name, part in zip(names, parts, strict=True)]
    return [name if names.count(name) == 1 else _told_apart(i, names, settings) for i, name in enumerate(names)]


def _told_apart(i: int, names: list[str], settings: list[dict[str, Any]]) -> str:
    """A name that others have too, with the fields in which it differs from them."""
    others = [settings[j] for j in range(len(names)) if names[j] == names[i]]
    differ = [k for k, v in settings[i].items() if k not in NAMED and any(other.get(k) != v for other in others)]
    return ", ".join([names[i], *(f"{key}={settings[i][key]}" for key in differ[:3])])


def protocol_of(run: Run) -> str:
    """`uda`, `pda`, `ssda`, and whether the target was thinned out."""
    return f"{run.value('data.setting')}{', imbalanced' if run.value('data.imbalanced') else ''}"
