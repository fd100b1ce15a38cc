"""The paper's tables as data: what each is made of (`tables/*.yaml`), and the numbers it prints (`published.csv`).

A table has parts (a data set in a setting, each with its tasks as columns) and rows (a method on a base model, as the
paper calls them). A row that fastget has no method for stands for its published numbers alone.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastget import bases
from fastget.archive.statistics import Metric, metric_of
from fastget.common.text import nearest
from fastget.config.yaml_file import read_yaml
from fastget.studies.tasks import Task

TABLES = Path(__file__).parents[1] / "tables"
PUBLISHED = TABLES / "published.csv"
KEYS = ("table", "data", "setting", "shots")  # by which a part finds its numbers


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A line of the table."""

    group: str  # the base model as the paper's numbers name it
    label: str  # the method as they name it
    base: str  # fastget's
    method: str | None  # None: fastget does not have it
    set: Mapping[str, str]  # what makes it a variant of the method

    @property
    def name(self) -> str:
        """As a folder, a file and a heading of its own."""
        stem = self.label if self.set or self.method is None else self.method
        stem = re.sub(r"[^a-z0-9.]+", "-", stem.lower()).strip("-")
        return stem if self.base == bases.DEFAULT else f"{self.base}-{stem}"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A data set in a setting: some columns of the table."""

    name: str  # of the setting, as the results' folders have it
    data: str
    setting: str  # of fastget compare
    set: Mapping[str, str]
    tasks: Mapping[str, Task]  # column -> source, target
    means: Mapping[str, Sequence[str]]  # column -> the tasks it is the mean of
    published: Mapping[tuple[str, str, str], str]  # group, label, column -> the number as printed, in per cent

    @property
    def title(self) -> str:
        return f"{self.data}, {self.name}"

    @property
    def metric(self) -> Metric:
        return metric_of(self.data)

    @property
    def columns(self) -> list[str]:
        return [*self.tasks, *self.means]

    @property
    def headline(self) -> str:
        """The column that stands for the part: its first mean, or its only task."""
        return next(iter(self.means or self.tasks))

    def headlines(self, tasks: Collection[str]) -> list[str]:
        """What stands for the part where these tasks are run: the headline, or of a part of its tasks themselves."""
        some = [name for name in self.tasks if name in tasks]
        whole = set(self.means.get(self.headline, [self.headline])) <= set(some)
        return [self.headline] if whole or not some else some

    def of(self, column: str) -> list[Task]:
        """The tasks behind a column."""
        return [self.tasks[name] for name in self.means.get(column, [column])]

    def reported(self, row: TableRow, column: str) -> str | None:
        return self.published.get((row.group, row.label, column))


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """One of the paper's."""

    name: str
    title: str
    parts: Sequence[Part]
    rows: Sequence[TableRow]

    @property
    def methods(self) -> list[str]:
        """Those that can be run, as fastget calls them."""
        return list(dict.fromkeys(row.method for row in self.rows if row.method is not None))

    @property
    def bases(self) -> list[str]:
        return list(dict.fromkeys(row.base for row in self.rows if row.method is not None))

    @property
    def tasks(self) -> list[str]:
        """The columns that are no means."""
        return list(dict.fromkeys(name for part in self.parts for name in part.tasks))

    @property
    def numbers(self) -> int:
        """How many the paper prints."""
        places = [(part, row, column) for part in self.parts for row in self.rows for column in part.columns]
        return sum(part.reported(row, column) is not None for part, row, column in places)

    @property
    def data(self) -> list[str]:
        return list(dict.fromkeys(part.data for part in self.parts))


def table_names() -> list[str]:
    return sorted(file.stem for file in TABLES.glob("*.yaml"))


def read_table(name: str) -> PaperTable:
    """ValueError names those that there are."""
    if name not in table_names():
        known = table_names()
        raise ValueError(f"no such table {name!r}{nearest(name, known)}: choose from {', '.join(known)}")
    content = read_yaml(TABLES / f"{name}.yaml")
    rows = [
        _row(group, label, str(of["base"]), what) for group, of in content["rows"].items()
        for label, what in of["methods"].items()
    ]  # fmt: skip
    return PaperTable(name=name, title=content["title"], parts=[_part(one) for one in content["parts"]], rows=rows)


@lru_cache
def read_published() -> tuple[dict[str, str], ...]:
    """Every number of the paper's tables: table, data, setting, backbone, base, method, task, shots, accuracy."""
    with PUBLISHED.open(encoding="utf-8", newline="") as stream:
        return tuple(csv.DictReader(stream))


def _row(group: str, label: str, base: str, what: Any) -> TableRow:
    method, own = (what["method"], what["set"]) if isinstance(what, dict) else (what, {})
    return TableRow(group=group, label=str(label), base=base, method=method, set=_texts(own))


def _part(content: Mapping[str, Any]) -> Part:
    tasks: dict[str, Task] = {name: (pair[0], pair[1]) for name, pair in content["tasks"].items()}
    means = {name: list(tasks) if of == "all" else list(of) for name, of in content.get("means", {}).items()}
    wanted = content.get("published")
    numbers = {
        (line["base"], line["method"], line["task"]): line["accuracy"]
        for line in read_published()
        if wanted and all(line[key] == wanted[key] for key in KEYS if key in wanted)
    }
    return Part(
        name=content["name"], data=content["data"], setting=content["setting"], set=_texts(content["set"]),
        tasks=tasks, means=means, published=numbers,
    )  # fmt: skip


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """As the command line would give them."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in settings.items()}
