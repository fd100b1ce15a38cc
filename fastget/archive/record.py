"""A result as data, `results/DATA/SETTING/METHOD.json`: what a paper reports, what came out here, and of what.

A column is a task, or a mean of tasks; `headline` names the one whose figures stand at the top. Figures are per cent.
Each column keeps its figure of every seed, so that a reader, and `check`, can do the sums again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastget import __version__, bases
from fastget.archive.statistics import METRICS, Metric, choices_of, mean_over_seeds, seed_means
from fastget.common.files import write_atomically
from fastget.config import free_fields
from fastget.config.yaml_file import read_yaml
from fastget.runs.summary import SeedSummary

SELECTION = "final model"
TASK_AND_SEED = {"data.source", "data.target", "train.seeds"}  # in which the runs of a record differ
RELEASE = f"fastget {__version__}"  # in place of a commit, of an installed package
NEAR = 0.002  # points: figures are rounded to 0.001


@dataclass(frozen=True)
class DoneRun:
    """A finished run of one seed."""

    folder: Path
    summary: SeedSummary


@dataclass(frozen=True, kw_only=True)
class Column:
    """A task, or a mean of tasks."""

    tasks: int  # that it is the mean of
    reported: float | None  # the paper's, where it prints one
    ours: float | None
    std: float | None  # over seeds; None of a single one
    n: int  # seeds
    difference: float | None  # ours less the paper's
    per_seed: dict[str, float]
    other_metrics: dict[str, float | None]
    other_selections: dict[str, dict[str, float | None]]  # ours and std


@dataclass(frozen=True, kw_only=True)
class Record:
    """The content of a file."""

    data: str
    setting: str
    method: str
    base: str
    recipe: str
    name: str  # the file's, and the row's where there is more to it than method and base
    row: str  # for people
    metric: Metric
    reported: float | None
    ours: float | None
    std: float | None
    n: int
    headline: str  # the column these four are of
    unit: str = "per cent"
    selection: str = SELECTION
    seeds: list[int]
    tasks: dict[str, Column]
    backbone: dict[str, str] = field(default_factory=dict)
    commit: list[str]
    machine: list[str]
    configuration_sha256: str
    study: str  # what ran it: compare, demo, reproduce TABLE

    @property
    def place(self) -> Path:
        """In a folder of results."""
        return Path(self.data) / self.setting / f"{self.name}.json"

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True, kw_only=True)
class RecordHead:
    """Whose results they are."""

    data: str
    setting: str
    method: str
    base: str
    recipe: str
    title: str
    metric: Metric
    study: str
    variant: str = ""  # a name of its own, where the row is more than method and base

    @property
    def name(self) -> str:
        """As a file."""
        stem = self.variant or (self.method if self.base == bases.DEFAULT else f"{self.base}-{self.method}")
        return stem if self.recipe == "default" else f"{stem}-{self.recipe}"


# --- from runs -----------------------------------------------------------------------------------


def build(
    row: RecordHead,
    columns: Mapping[str, Sequence[Sequence[DoneRun]]],
    headline: str,
    reported: Mapping[str, str | None],
) -> Record | None:
    """`columns`: name -> the runs of each of its tasks. None if the headline has no figure: a task without any run that
    is done, or no labels."""
    runs = list({run.folder: run for tasks in columns.values() for task in tasks for run in task}.values())
    chosen = {run.folder: choices_of(run.folder, row.metric) for run in runs}
    made = {name: _column(tasks, row.metric, chosen, reported.get(name)) for name, tasks in columns.items()}
    top = made[headline]
    if top.ours is None:
        return None
    environments = [_environment(run.folder) for run in runs]
    shared = set.intersection(*(set(run.summary.backbone.items()) for run in runs))  # random weights are a seed's own
    return Record(
        data=row.data, setting=row.setting, method=row.method, base=row.base, recipe=row.recipe, name=row.name,
        row=row.title, metric=row.metric, reported=top.reported, ours=top.ours, std=top.std, n=top.n,
        headline=headline, seeds=sorted({run.summary.seed for run in runs}), tasks=made,
        backbone=dict(sorted(shared)), commit=sorted({one.get("commit") or RELEASE for one in environments}),
        machine=sorted({f"{one.get('device')}; {one.get('platform')}" for one in environments}),
        configuration_sha256=configuration_hash([run.folder for run in runs]), study=row.study,
    )  # fmt: skip


def _column(
    tasks: Sequence[Sequence[DoneRun]], metric: Metric, chosen: Mapping[Path, Mapping[str, float]], reported: str | None
) -> Column:
    def values(metric: Metric) -> dict[int, float]:
        known = [{run.summary.seed: run.summary[metric] for run in task if run.summary[metric] is not None}
                 for task in tasks]  # fmt: skip
        return seed_means(known)

    by_seed = values(metric)
    ours, std = _figure(by_seed)
    theirs = None if reported is None else float(reported)
    names = dict.fromkeys(name for task in tasks for run in task for name in chosen[run.folder])
    others = {}
    for name in names:
        of = [{run.summary.seed: chosen[run.folder][name] for run in task if name in chosen[run.folder]}
              for task in tasks]  # fmt: skip
        others[name] = dict(zip(("ours", "std"), _figure(seed_means(of)), strict=True))
    return Column(
        tasks=len(tasks), reported=theirs, ours=ours, std=std, n=len(by_seed),
        difference=None if ours is None or theirs is None else round(ours - theirs, 3),
        per_seed={str(seed): round(100 * value, 3) for seed, value in sorted(by_seed.items())},
        other_metrics={other: _figure(values(other))[0] for other in METRICS if other != metric},
        other_selections=others,
    )  # fmt: skip


def _figure(by_seed: Mapping[int, float]) -> tuple[float | None, float | None]:
    """Mean and std, in per cent."""
    found = mean_over_seeds(by_seed)
    if found is None:
        return None, None
    return round(100 * found.mean, 3), None if found.std is None else round(100 * found.std, 3)


def _environment(run: Path) -> dict[str, Any]:
    file = run / "environment.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found if isinstance(found, dict) else {}


def configuration_hash(runs: Sequence[Path]) -> str:
    """Of all that the runs' figures depend on but task and seed, as their config.yaml tell it. What else differs among
    them (pda-random draws classes for each seed) counts with all its values."""
    kept: dict[str, set[str]] = {}
    apart = free_fields() | TASK_AND_SEED
    for run in runs:
        file = run / "config.yaml"
        stored = read_yaml(file) if file.is_file() else {}
        for section, content in stored.items() if isinstance(stored, dict) else ():
            for name, value in content.items():
                if f"{section}.{name}" not in apart:
                    kept.setdefault(f"{section}.{name}", set()).add(json.dumps(value))
    plain = {key: sorted(values) for key, values in kept.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


# --- files ---------------------------------------------------------------------------------------


def write(folder: Path, records: Sequence[Record]) -> list[Path]:
    """Each in its place; the folder, if there is anything in it."""
    for record in records:
        file = folder / record.place
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, record.text().encode())
    return [folder] if records else []


def read_all(folder: Path) -> list[Record]:
    """Every result of a folder, checked."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder of results: expected {folder}/DATA/SETTING/METHOD.json")
    return [read(file, folder) for file in sorted(folder.rglob("*.json"))]


def read(file: Path, folder: Path) -> Record:
    """ValueError if it is damaged, or does not add up."""
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        record = Record(**{**tree, "tasks": {name: Column(**part) for name, part in tree["tasks"].items()}})
        why = _wrong(record, file.relative_to(folder))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} is damaged, or no result of fastget ({error}): add its study again") from error
    if why:
        raise ValueError(
            f"{file} does not add up: {why}. Results are written by `python -m fastget.archive add`, not by hand"
        )
    return record


def _wrong(record: Record, place: Path) -> str:
    """What does not add up, in words."""
    if place != record.place:
        return f"it tells of {record.place}, and lies at {place}"
    if record.metric not in METRICS or record.selection != SELECTION or record.unit != "per cent":
        return f"{record.metric}, {record.selection}, {record.unit}: expected one of {', '.join(METRICS)}, {SELECTION}"
    if not record.commit or not record.machine or len(record.configuration_sha256) != 64:
        return "commit, machine or the configuration's hash is missing"
    for name, column in record.tasks.items():
        each = list(column.per_seed.values())
        mean = statistics.fmean(each) if each else None
        std = statistics.stdev(each) if len(each) > 1 else None
        difference = None if mean is None or column.reported is None else mean - column.reported
        if column.n != len(each) or not set(map(int, column.per_seed)) <= set(record.seeds):
            return f"{name} has n = {column.n} and seeds {', '.join(column.per_seed)} of {record.seeds}"
        for what, told, found in (("ours", column.ours, mean), ("std", column.std, std),
                                  ("difference", column.difference, difference)):  # fmt: skip
            if not _near(told, found):
                return f"{what} of {name} is {told}, and by its seeds {found if found is None else round(found, 3)}"
    top = record.tasks[record.headline]
    if (record.reported, record.ours, record.std, record.n) != (top.reported, top.ours, top.std, top.n):
        return f"its figures are not those of its headline, {record.headline}"
    return ""


def _near(a: float | None, b: float | None) -> bool:
    return a is b if a is None or b is None else abs(a - b) <= NEAR
