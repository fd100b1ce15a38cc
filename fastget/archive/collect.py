"""A study's results as data, from its runs: what `results/DATA/SETTING/METHOD.json` in its folder says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastget.archive.record import DoneRun, Record, RecordHead, build, read_all
from fastget.archive.statistics import Metric, metric_of
from fastget.config.combinations import title_of
from fastget.config.yaml_file import read_yaml
from fastget.data.feature_store import Store
from fastget.runs.summary import SeedSummary, read_summary

FOLDER = "results"
MEAN = "mean"
FEATURES = "-features"  # of a data set: bottleneck and classifier alone were trained


def of_study(out: Path, data: str | None = None, metric: Metric | None = None) -> list[Record]:
    """Of a folder that `fastget compare`, `reproduce` or `demo` wrote. `data` is its data set's name, where the study
    does not tell it."""
    if (out / "compare.json").is_file():
        return of_compare(out, data, metric)
    if (out / FOLDER).is_dir():
        return read_all(out / FOLDER)
    raise ValueError(f"{out} holds no results: expected the --out of a fastget compare, reproduce or demo that is done")


def of_compare(out: Path, data: str | None = None, metric: Metric | None = None) -> list[Record]:
    """A record a setting and row, of the runs that are done; rows without a figure are left out."""
    axes = json.loads((out / "compare.json").read_text(encoding="utf-8"))["axes"]
    records = []
    for setting in axes["settings"]:
        for base in axes["bases"]:
            for method in axes["methods"]:
                tasks = [_done(out / setting / task / f"{base}-{method}", axes["seeds"]) for task in axes["tasks"]]
                if found := _record(setting, tasks, data, metric):
                    records.append(found)
    return records


def _record(setting: str, tasks: list[list[DoneRun]], data: str | None, metric: Metric | None) -> Record | None:
    """None if some task has no run that is done: a mean would be of other tasks than its neighbours'."""
    if not all(tasks):
        return None
    first = tasks[0][0].summary
    name = data or data_of(tasks[0][0])
    row = RecordHead(
        data=name, setting=setting, method=first.method, base=first.base, recipe=first.recipe,
        title=title_of(first.method, first.base, first.recipe),
        metric=metric or metric_of(name.removesuffix(FEATURES)), study="compare",
    )  # fmt: skip
    columns = {"->".join(names_of((task[0].summary.source, task[0].summary.target))): [task] for task in tasks}
    if len(tasks) > 1:
        columns[MEAN] = tasks
    return build(row, columns, next(reversed(columns)), {})


def names_of(task: tuple[str, str]) -> tuple[str, str]:
    """A task's domains in short: a list file without its place."""
    source, target = (Path(part).stem if "/" in part or part.endswith(".txt") else part for part in task)
    return source, target


def _done(folder: Path, seeds: Iterable[str]) -> list[DoneRun]:
    found = [(folder / f"seed-{seed}", read_summary(folder / f"seed-{seed}")) for seed in seeds]
    return [DoneRun(place, summary) for place, summary in found if isinstance(summary, SeedSummary)]


def data_of(run: DoneRun) -> str:
    """The data set's name; of features, that of the images that they are of."""
    if run.summary.data != "features":
        return run.summary.data
    file = run.folder / "config.yaml"
    stored: Any = read_yaml(file) if file.is_file() else {}
    section = stored.get("data", {}) if isinstance(stored, dict) else {}
    places = [Path(str(section.get("root"))), Path(str(section.get("started_in"))) / str(section.get("root"))]
    for place in places:
        if (place / "index.json").is_file():
            return Store.open(place).origin.data + FEATURES
    raise ValueError(
        f"{run.folder} was trained on the features in {places[0]}, which are not there to tell of what data set they "
        "are: say it by --data, e.g. --data office31-features"
    )
