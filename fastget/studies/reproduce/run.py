"""Run a table, or what is left of it: its jobs, what they will take, the live table, the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fastget import methods
from fastget.archive.statistics import shown
from fastget.common.text import counted
from fastget.studies.compare import SETTINGS, own_settings, refuse_foreign
from fastget.studies.jobs import Job, Outcome, Slot, find_slots, look
from fastget.studies.reproduce.recipe import PaperTable, Part, TableRow
from fastget.studies.slurm import AT_A_TIME
from fastget.studies.study import Study, device_of, run_study, try_config
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


def plan(what: Reproduction, out: Path) -> list[Job]:
    """Every job, in the table's order. ValueError for a setting of the user's that a row stands for."""
    table = what.table
    refuse_foreign(what.given, what.methods, what.bases)
    for key in dict.fromkeys(key for row in table.rows for key in row.set):
        if key in what.given:
            raise ValueError(f"{key} is what the rows of {table.name} differ in: leave it out")
    jobs: list[Job] = []
    for part in table.parts:
        for row in filter(what.runs, table.rows):
            own = row_settings(what, part, row)
            config, refused = try_config(own, None)
            for name, task in part.tasks.items():
                if name in what.tasks:
                    settings = {**own, "data.source": task[0], "data.target": task[1]}
                    jobs += Job.each(what.seeds, place(out, part, row, task), settings, setting=part.title,
                                     config=config, refused=refused, row=row.label if row.set else "")  # fmt: skip
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


COLUMNS = 3  # of a part, in a terminal


def reproduce(
    what: Reproduction,
    out: Path,
    count: int | None = None,
    console: Console | None = None,
    *,
    dry: bool = False,
    slurm: Mapping[str, str] | None = None,
) -> int:
    """0, or 1 if a job failed. `dry`: say what there is to do, and do nothing. `slurm`: not here, but as SLURM jobs."""
    from fastget.studies.reproduce.measure import to_come  # which load torch
    from fastget.studies.reproduce.write import write

    console = console or Console()
    study = Study(
        kind="reproduce", out=out, jobs=plan(what, out), metric=what.table.parts[0].metric, settings=what.given,
        axes={"table": [what.table.name], "recipe": [what.recipe], "methods": list(what.methods),
              "bases": list(what.bases), "tasks": list(what.tasks), "seeds": list(map(str, what.seeds))},
        table=lambda outcomes: live_table(what, out, outcomes), write=lambda outcomes: write(what, out, outcomes),
    )  # fmt: skip
    device = device_of(study)
    slots = find_slots(count, device) if slurm is None else [Slot({}, {})] * (count or AT_A_TIME)
    outcomes = [look(job) for job in study.jobs]
    for line in [*describe(what, study.jobs), *to_come(outcomes, slots, measure_it=not dry and slurm is None)]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if dry:
        return 0
    return run_study(study, count, console, slurm)


def describe(what: Reproduction, jobs: Sequence[Job]) -> list[str]:
    """What the table is made of."""
    table = what.table
    rows = list(filter(what.runs, table.rows))
    lines = [f"{table.title}: {counted(len(table.rows), 'row')}, {len(rows)} of them run here, recipe "
             f"{what.recipe}, {counted(len(what.seeds), 'seed')}"]  # fmt: skip
    for part in table.parts:
        config = next((job.config for job in jobs if job.config and job.setting == part.title), None)
        if config is not None:
            tasks = [name for name in part.tasks if name in what.tasks]
            lines.append(f"{part.title}: {counted(len(tasks), 'task')} on {config.network.name}, batches of "
                         f"{config.train.batch_size}")  # fmt: skip
    return lines


def live_table(what: Reproduction, out: Path, outcomes: Sequence[Outcome]) -> Table:
    """Every row of the paper's table against its headlines; where --tasks leaves some out, against the first of them.
    All of them are in table.md."""
    from fastget.studies.reproduce.write import Figures, row_title

    figures = Figures(what, out, outcomes)
    table = Table(
        title=f"{what.table.title}: %, final models, {counted(len(what.seeds), 'seed')}", title_justify="left",
        caption="table.md has every task, and other selections", caption_justify="left", min_width=60,
    )  # fmt: skip
    table.add_column("method", no_wrap=True)
    places = [(part, column) for part in what.table.parts for column in part.headlines(what.tasks)[:COLUMNS]]
    for part, column in places:
        for words in (f"{part.data} {part.name} {column}: paper", "ours", "diff."):
            table.add_column(words, justify="right")
    for row in what.table.rows:
        texts = []
        for part, column in places:
            cell = figures.cell(part, row, column)
            found = figures.outcomes(part, row, column)
            done = sum(one.status == "done" for one in found)
            otherwise = cell.state if done == len(found) or cell.state == "failed" else f"{done}/{len(found)}"
            ours = "" if not what.runs(row) else shown(cell.ours) if cell.ours else otherwise
            difference = "" if cell.difference is None else f"{cell.difference:+.1f}"
            texts += [cell.reported or "", ours, difference]
        table.add_row(row_title(row), *texts)
    return table
