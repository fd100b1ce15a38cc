"""`fastget compare`: every method in every setting on every task, over seeds; a table, a CSV file, a plot."""

from __future__ import annotations

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
    mean_over_seeds,
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
    axes: dict[str, list[str]] = {
        "methods": list(what.methods),
        "bases": list(what.bases),
        "settings": list(what.settings),
        "tasks": [folder_of(task) for task in what.tasks],
        "seeds": list(map(str, what.seeds)),
    }
    study = Study(
        kind="compare", out=out, jobs=plan(what, out), metric=what.metric, settings=what.given, file=what.file,
        axes=axes, table=lambda outcomes: live_table(what, outcomes), write=lambda outcomes: write(what, out, outcomes),
    )  # fmt: skip
    return run_study(study, count, console)


def plan(what: Comparison, out: Path) -> list[Job]:
    """Every job, in the order of the tables; those that do not go together with the reason."""
    refuse_foreign(what.given, what.methods, what.bases)
    jobs = []
    for setting in what.settings:
        for method, base in what.rows():
            mine = own_settings(what.given, method, base)
            own = {"method.name": method, "method.base": base, **mine, **SETTINGS[setting]}
            config, refused = try_config(own, what.file)
            for task in what.tasks:
                for seed in what.seeds:
                    settings = {**own, "data.source": task[0], "data.target": task[1]}
                    if setting == "pda-random":  # the draw is a part of what a seed decides, the same for all methods
                        settings.setdefault("data.split_seed", str(seed))
                    folder = out / setting / folder_of(task) / f"{base}-{method}" / f"seed-{seed}"
                    jobs.append(
                        Job(
                            folder=folder, settings=settings, setting=setting, seed=seed, config=config, refused=refused
                        )
                    )
    return jobs


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
        self.cells: dict[tuple[str, Pair, Task], list[Outcome]] = {}
        for one in outcomes:
            job = one.job
            row, task = (job.value("method.name"), job.value("method.base")), _task(job)
            self.cells.setdefault((job.setting, row, task), []).append(one)

    def of(self, setting: str, row: Pair, task: Task | None = None) -> list[Outcome]:
        """Of one task, or of all."""
        tasks = self.what.tasks if task is None else [task]
        return [one for task in tasks for one in self.cells.get((setting, row, task), [])]

    def figure(self, setting: str, row: Pair, task: Task | None = None) -> Mean | None:
        """Over seeds, of one task or of the mean over tasks."""
        if task is not None:
            return mean_over_seeds(values(self.of(setting, row, task), self.metric))
        return mean_over_tasks(self.by_task(setting, row))

    def by_task(self, setting: str, row: Pair) -> list[dict[int, float]]:
        """For each task: seed -> the metric."""
        return [values(self.of(setting, row, task), self.metric) for task in self.what.tasks]

    def column(self, setting: str, task: Task | None = None) -> list[tuple[Mean | None, Mark]]:
        """A figure a row, the best and those near it marked."""
        figures = [self.figure(setting, row, task) for row in self.what.rows()]
        return list(zip(figures, marks(figures), strict=True))


def _task(job: Job) -> Task:
    return job.value("data.source"), job.value("data.target")


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
    columns = []
    for setting in what.settings:
        table.add_column(setting, justify="right")
        columns.append(results.column(setting))
    for number, (method, base) in enumerate(what.rows()):
        parts = []
        for setting, column in zip(what.settings, columns, strict=True):
            parts.append(_live_cell(results.of(setting, (method, base)), *column[number], what.metric))
        table.add_row(what.title((method, base)), *parts)
    return table


def _live_cell(outcomes: Sequence[Outcome], figure: Mean | None, mark: Mark, metric: Metric) -> Text:
    done = [one.summary[metric] for one in outcomes if one.summary is not None]
    failed = sum(one.status == "failed" for one in outcomes)
    if all(one.status == "refused" for one in outcomes):
        return Text("refused", style="dim")
    known = [value for value in done if value is not None]
    whole = figure is not None and len(done) == len(outcomes)
    text = shown(figure) if figure and whole else f"({100 * statistics.fmean(known):.1f})" if known else "-"
    text += " †" if whole and mark == "near" else ""
    count = "" if len(done) == len(outcomes) else f"  {len(done)}/{len(outcomes)}"
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
    panels = {}
    for setting in results.what.settings:
        dots = []
        for row, (figure, mark) in zip(results.what.rows(), results.column(setting), strict=True):
            single = list(seed_means(results.by_task(setting, row)).values())
            dots.append(Dot(results.what.title(row), figure, mark, single, state(results.of(setting, row))))
        panels[setting] = dots
    return panels
