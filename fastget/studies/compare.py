"""`fastget compare`: every method in every setting on every task, over seeds; a table, a CSV file, a plot."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastget import bases, methods
from fastget.archive import record
from fastget.archive.collect import FOLDER, of_compare
from fastget.archive.plots import Dot, draw_panels
from fastget.archive.statistics import (
    LEGEND,
    METRICS,
    Mark,
    Mean,
    Metric,
    cell,
    markdown,
    marks,
    mean_over_tasks,
    seed_means,
    shown,
    words,
    write_lines,
)
from fastget.common.text import counted
from fastget.config.combinations import title_of
from fastget.studies.jobs import Job, Outcome
from fastget.studies.outcomes import not_run, state, values, verdicts
from fastget.studies.study import Study, run_study, try_config
from fastget.studies.tasks import Task, folder_of

UDA = {"data.setting": "uda", "data.imbalanced": "false", "data.pda_subset": "first"}
PDA, SSDA, THIN = {**UDA, "data.setting": "pda"}, {**UDA, "data.setting": "ssda"}, {"data.imbalanced": "true"}
SETTINGS: dict[str, dict[str, str]] = {
    "uda": UDA,
    "pda": PDA,
    "pda-random": {**PDA, "data.pda_subset": "random"},  # a draw of classes for each seed
    "ssda": SSDA,
    "ssda-1": {**SSDA, "data.shots": "1"},
    "imbalanced": {**UDA, **THIN},
    "imbalanced-pda": {**PDA, **THIN},
    "imbalanced-ssda": {**SSDA, **THIN},
}
KEPT = {  # field -> what says it here
    "method.name": "--methods",
    "method.base": "--bases",
    "data.setting": "--settings",
    "data.imbalanced": "--settings imbalanced",
    "data.pda_subset": "--settings pda-random",
}
Pair = tuple[str, str]  # method, base


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared."""

    methods: Sequence[str]
    bases: Sequence[str] = (bases.DEFAULT,)
    settings: Sequence[str] = ("uda",)
    tasks: Sequence[Task]
    seeds: Sequence[int] = (0,)
    given: Mapping[str, str]  # the user's own settings, of every job
    file: str | None = None  # --config
    metric: Metric = "mean_class_accuracy"

    def rows(self) -> list[Pair]:
        return [(method, base) for base in self.bases for method in self.methods]

    def title(self, row: Pair) -> str:
        return title_of(*row, self.given.get("method.recipe", "default"))


def compare(what: Comparison, out: Path, count: int | None = None, console: Console | None = None) -> int:
    """Run it, or what is left of it. 0, or 1 if a job failed."""
    tasks, seeds = list(map(folder_of, what.tasks)), list(map(str, what.seeds))
    axes = {"methods": what.methods, "bases": what.bases, "settings": what.settings, "tasks": tasks, "seeds": seeds}
    study = Study(
        kind="compare", out=out, jobs=plan(what, out), metric=what.metric, settings=what.given, file=what.file,
        axes=axes, table=lambda outcomes: live_table(what, outcomes), write=lambda outcomes: write(what, out, outcomes),
    )  # fmt: skip
    return run_study(study, count, console)


def plan(what: Comparison, out: Path) -> list[Job]:
    """Every job, in the order of the tables; those that do not go together with the reason."""
    refuse_foreign(what.given, what.methods, what.bases)
    jobs: list[Job] = []
    for setting in what.settings:
        for method, base in what.rows():
            mine = own_settings(what.given, method, base)
            own = {"method.name": method, "method.base": base, **mine, **SETTINGS[setting]}
            config, refused = try_config(own, what.file)
            for task in what.tasks:
                settings = {**own, "data.source": task[0], "data.target": task[1]}
                folder = out / setting / folder_of(task) / f"{base}-{method}"
                found = Job.each(what.seeds, folder, settings, setting=setting, config=config, refused=refused)
                jobs += map(_with_draw, found) if setting == "pda-random" else found
    return jobs


def _with_draw(job: Job) -> Job:
    """The draw of classes is a part of what a seed decides, the same for all methods."""
    return dataclasses.replace(job, settings={"data.split_seed": str(job.seed), **job.settings})


def refuse_foreign(given: Mapping[str, str], run: Sequence[str], on: Sequence[str]) -> None:
    """An error for a setting of a method, or of a base model, that no job has."""
    for key in given:
        section = key.split(".")[0]
        if section in methods.names() and section not in run:
            raise ValueError(f"{key} is a setting of {section}, which is not compared: leave it out, or add the method")
        if section in bases.names() and section not in on:
            raise ValueError(
                f"{key} is a setting of the base model {section}, which is not compared: add it by --bases"
            )


def own_settings(given: Mapping[str, str], method: str, base: str) -> dict[str, str]:
    """The settings without those of other methods and base models."""
    others = {*methods.names(), *bases.names()} - {method, base}
    return {key: value for key, value in given.items() if key.split(".")[0] not in others}


# --- results -------------------------------------------------------------------------------------


class Results:
    """Outcomes by setting, row and task."""

    def __init__(self, what: Comparison, outcomes: Sequence[Outcome], metric: Metric) -> None:
        self.what, self.metric = what, metric
        self.cells: dict[tuple[str, ...], list[Outcome]] = {}
        for one in outcomes:
            keys = ("method.name", "method.base", "data.source", "data.target")
            self.cells.setdefault((one.job.setting, *map(one.job.value, keys)), []).append(one)

    def of(self, setting: str, row: Pair, task: Task | None = None) -> list[Outcome]:
        """Of one task, or of all."""
        tasks = self.what.tasks if task is None else [task]
        return [one for task in tasks for one in self.cells.get((setting, *row, *task), [])]

    def by_task(self, setting: str, row: Pair, task: Task | None = None) -> list[dict[int, float]]:
        """For each task, or for one: seed -> the metric."""
        tasks = self.what.tasks if task is None else [task]
        return [values(self.of(setting, row, task), self.metric) for task in tasks]

    def column(self, setting: str, task: Task | None = None) -> list[tuple[Mean | None, Mark]]:
        """A figure a row, over seeds, of one task or of the mean over tasks; the best and those near it marked."""
        figures = [mean_over_tasks(self.by_task(setting, row, task)) for row in self.what.rows()]
        return list(zip(figures, marks(figures), strict=True))


def live_table(what: Comparison, outcomes: Sequence[Outcome]) -> Table:
    """Methods against settings: the mean over tasks; until all jobs of a cell are done, that of those that are."""
    results = Results(what, outcomes, what.metric)
    count = f"{counted(len(what.tasks), 'task')}, {counted(len(what.seeds), 'seed')}"
    caption = "bold: the best; †: within one std of it"
    if any(one.status in ("pending", "failed") for one in outcomes):
        caption += "; in brackets: the mean of the jobs that are done"
    table = Table(
        title=f"{words(what.metric)}, %, final models; {count}", title_justify="left",
        caption=caption, caption_justify="left", min_width=60,
    )  # fmt: skip
    table.add_column("method")
    columns = {setting: results.column(setting) for setting in what.settings}
    for setting in columns:
        table.add_column(setting, justify="right")
    for number, row in enumerate(what.rows()):
        parts = [_live_cell(results.of(one, row), *column[number], what.metric) for one, column in columns.items()]
        table.add_row(what.title(row), *parts)
    return table


def _live_cell(outcomes: Sequence[Outcome], figure: Mean | None, mark: Mark, metric: Metric) -> Text:
    done = sum(one.status == "done" for one in outcomes)
    failed = sum(one.status == "failed" for one in outcomes)
    if all(one.status == "refused" for one in outcomes):
        return Text("refused", style="dim")
    known = [one.summary[metric] for one in outcomes if one.summary is not None and one.summary[metric] is not None]
    whole = figure is not None and done == len(outcomes)
    text = shown(figure) if figure and whole else f"({100 * statistics.fmean(known):.1f})" if known else "-"
    text += " †" if whole and mark == "near" else ""
    count = "" if done == len(outcomes) else f"  {done}/{len(outcomes)}"
    return Text.assemble(
        (text, "bold" if whole and mark == "best" else ""),
        (count, "dim"),
        (f"  {failed} failed" if failed else "", "red"),
    )


def write(what: Comparison, out: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """table.md, plot.png and results/."""
    order = [what.metric, *(metric for metric in METRICS if metric != what.metric)]
    sizes = {"method": what.rows(), "task": what.tasks, "seed": what.seeds}
    size = ", ".join(counted(len(part), name) for name, part in sizes.items())
    lines = [f"# Comparison: {size}", "", LEGEND]
    if len(what.tasks) > 1:
        lines += ["", "The mean is over tasks, and its std over seeds: that of each seed's mean over tasks. A seed "
                  "that lacks a task is left out of it."]  # fmt: skip
    if "pda-random" in what.settings and "data.split_seed" not in what.given:
        lines += ["", "pda-random: each seed draws classes of its own, the same for every method, so its std is over "
                  "draws too."]  # fmt: skip
    for metric in order:
        results = Results(what, outcomes, metric)
        for setting in what.settings:
            lines += ["", f"## {setting}, {words(metric)}", "", *_table(results, setting)]
    if wrong := verdicts(outcomes):
        lines += ["", "## Verdicts", "", *wrong, "", "Each run's summary.json has the sentences and the numbers."]
    if why := not_run(outcomes):
        lines += ["", "## Not there, and why", "", *why]
    write_lines(out / "table.md", lines)
    results = Results(what, outcomes, what.metric)
    plot = draw_panels(_panels(results), words(what.metric), out / "plot.png")
    return [out / "table.md", plot, *record.write(out / FOLDER, of_compare(out, metric=what.metric))]


def _table(results: Results, setting: str) -> list[str]:
    what = results.what
    tasks: list[Task | None] = [*what.tasks] if len(what.tasks) == 1 else [*what.tasks, None]
    columns = [results.column(setting, task) for task in tasks]
    rows = []
    for number, row in enumerate(what.rows()):
        cells = [
            cell(*column[number], len(what.seeds), state(results.of(setting, row, task)))
            for task, column in zip(tasks, columns, strict=True)
        ]
        rows.append([what.title(row), *cells])
    head = ["mean" if task is None else f"{Path(task[0]).stem} → {Path(task[1]).stem}" for task in tasks]
    return markdown([f"n = {len(what.seeds)}", *head], rows)


def _panels(results: Results) -> dict[str, list[Dot]]:
    """Setting -> a dot a row: the mean over tasks, and that of each seed."""

    def dot(setting: str, row: Pair, figure: Mean | None, mark: Mark) -> Dot:
        single = list(seed_means(results.by_task(setting, row)).values())
        return Dot(results.what.title(row), figure, mark, single, state(results.of(setting, row)))

    rows = results.what.rows()
    return {setting: [dot(setting, row, *cell) for row, cell in zip(rows, results.column(setting), strict=True)]
            for setting in results.what.settings}  # fmt: skip
