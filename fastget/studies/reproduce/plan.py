"""From a table to its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastget import methods
from fastget.common.text import nearest
from fastget.studies.compare import SETTINGS, own_settings, refuse_foreign
from fastget.studies.jobs import Job
from fastget.studies.reproduce.recipe import PaperTable, Part, TableRow
from fastget.studies.study import try_config
from fastget.studies.tasks import Task, folder_of

TEXT = "paper-text"  # the paper's values, and the learning rates of its text, where ATDOC's code has others
RECIPES = ("default", "paper", TEXT)
RATES = {"optim.bottleneck_lr_scale": "0.1"}  # 0.001 for the bottleneck, 0.01 for the classifier; of every method


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What is run of a table, and how."""

    table: PaperTable
    methods: Sequence[str]  # of the table's
    bases: Sequence[str]
    tasks: Sequence[str]  # its columns
    seeds: Sequence[int]
    recipe: str = "default"  # of the methods that have one of this name; the others take their own default
    root: Path | None = None
    given: Mapping[str, str] = field(default_factory=dict)  # the user's own settings, which win over the table's

    def runs(self, row: TableRow) -> bool:
        """Whether fastget has the row's method, and it is asked for."""
        return row.method in self.methods and row.base in self.bases


def root_of(root: Path, data: str, only: bool) -> Path:
    """ROOT itself, or a data set's own folder in it; a table over several data sets needs one for each."""
    inner = root / data
    if inner.is_dir():
        return inner
    if not only:
        raise ValueError(f"{inner} is not there: a table over several data sets looks for each in a folder of its name")
    return root


def choose_tasks(text: str | None, table: PaperTable) -> list[str]:
    """The columns of --tasks; without it all."""
    known = list(dict.fromkeys(name for part in table.parts for name in part.tasks))
    names = known if text is None else [one.strip() for one in text.split(",") if one.strip()]
    for one in names:
        if one not in known:
            raise ValueError(f"{table.name} has no task {one!r}{nearest(one, known)}: choose from {', '.join(known)}")
    if not names or len(set(names)) != len(names):
        raise ValueError(f"--tasks takes one or more different tasks separated by commas, got {text!r}")
    return names


def plan(what: Reproduction, out: Path) -> list[Job]:
    """Every job, in the table's order. ValueError for a setting of the user's that a row stands for."""
    table = what.table
    refuse_foreign(what.given, what.methods, what.bases)
    for key in dict.fromkeys(key for row in table.rows for key in row.set):
        if key in what.given:
            raise ValueError(f"{key} is what the rows of {table.name} differ in: leave it out")
    jobs = []
    for part in table.parts:
        for row in filter(what.runs, table.rows):
            own = row_settings(what, part, row)
            config, refused = try_config(own, None)
            for name, task in part.tasks.items():
                if name not in what.tasks:
                    continue
                for seed in what.seeds:
                    folder = place(out, part, row, task) / f"seed-{seed}"
                    settings = {**own, "data.source": task[0], "data.target": task[1]}
                    jobs.append(
                        Job(folder=folder, settings=settings, setting=part.title, seed=seed, config=config,
                            refused=refused, row=row.label if row.set else "")
                    )  # fmt: skip
    return jobs


def place(out: Path, part: Part, row: TableRow, task: Task) -> Path:
    """The folder of a row's runs on a task, a folder a seed."""
    return out / part.data / part.name / folder_of(task) / row.name


def row_settings(what: Reproduction, part: Part, row: TableRow) -> dict[str, str]:
    """Of a row's jobs, all but the task: the table's, then the user's, then what the row and the setting stand for."""
    assert row.method is not None
    own = {"data.name": part.data, "method.name": row.method, "method.base": row.base}
    if (recipe := what.recipe.removesuffix("-text")) in methods.settings_of(row.method).presets:
        own["method.recipe"] = recipe
    if what.recipe == TEXT:
        own |= RATES
    if what.root is not None:
        own["data.root"] = str(root_of(what.root, part.data, len(what.table.data) == 1))
    return {**own, **part.set, **own_settings(what.given, row.method, row.base), **row.set, **SETTINGS[part.setting]}
