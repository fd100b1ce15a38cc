"""What many runs come to: mean and std over seeds, the best and those near it, and the files that say so.

The std is the sample's, over seeds. Over tasks it is the std over seeds of the mean over tasks: each seed gives one
mean, so that it tells how sure the mean is, not how unlike the tasks are.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from fastget.common import files
from fastget.common.files import write_atomically
from fastget.config.combinations import title_of
from fastget.data.datasets import DATA_SETS
from fastget.studies.jobs import Job, Outcome

Metric = Literal["accuracy", "mean_class_accuracy"]
METRICS: tuple[Metric, ...] = get_args(Metric)
Mark = Literal["best", "near", ""]
LEGEND = (
    "**Bold**: the best of its column. †: within one std of the best, the best's own std over seeds. "
    "Figures are per cent, mean ± std over seeds (n of them), of the final models; target labels selected nothing."
)


class Figure(NamedTuple):
    """A mean over seeds."""

    mean: float
    std: float | None  # None: a single seed
    n: int  # seeds


def words(metric: Metric) -> str:
    return metric.replace("_", " ")


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def metric_of(data: str) -> Metric:
    """The data set's own, where it is known."""
    return DATA_SETS[data].metric if data in DATA_SETS else "mean_class_accuracy"


def values(outcomes: Sequence[Outcome], metric: Metric) -> dict[int, float]:
    """Seed -> the metric, of the runs that are done and whose target has labels."""
    found = {one.job.seed: one.summary[metric] for one in outcomes if one.summary is not None}
    return {seed: value for seed, value in found.items() if value is not None}


def over_seeds(by_seed: Mapping[int, float]) -> Figure | None:
    """Of one task; None without any."""
    if not by_seed:
        return None
    found = list(by_seed.values())
    return Figure(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))


def seed_means(by_task: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Seed -> its mean over tasks, of the seeds that have every task."""
    whole = [seed for seed in by_task[0] if all(seed in task for task in by_task)] if by_task else []
    return {seed: statistics.fmean(task[seed] for task in by_task) for seed in whole}


def over_tasks(by_task: Sequence[Mapping[int, float]]) -> Figure | None:
    """Each seed's mean over tasks, then mean and std of these."""
    return over_seeds(seed_means(by_task))


def marks(figures: Sequence[Figure | None]) -> list[Mark]:
    """The best of a column, and those within one std of it: the best's own."""
    known = [figure for figure in figures if figure is not None]
    if not known:
        return [""] * len(figures)
    best = max(known, key=lambda figure: figure.mean)

    def mark(figure: Figure | None) -> Mark:
        if figure is None:
            return ""
        if figure.mean == best.mean:
            return "best"
        return "near" if best.std is not None and figure.mean >= best.mean - best.std else ""

    return [mark(figure) for figure in figures]


def state(outcomes: Sequence[Outcome]) -> str:
    """In place of a figure: why there is none."""
    found = {one.status for one in outcomes}
    if found == {"done"}:
        return "no labels"
    return next((word for word in ("refused", "failed") if word in found), "not done")


def shown(figure: Figure) -> str:
    """`93.6 ± 1.0`, or `93.6` of one seed."""
    return f"{100 * figure.mean:.1f}" + ("" if figure.std is None else f" ± {100 * figure.std:.1f}")


def cell(figure: Figure | None, mark: Mark, seeds: int, otherwise: str = "-") -> str:
    """A figure in Markdown; n where it is not that of all seeds."""
    if figure is None:
        return otherwise
    text = shown(figure) + (f" (n = {figure.n})" if figure.n != seeds else "")
    return {"best": f"**{text}**", "near": f"{text} †", "": text}[mark]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; the first column is text, the others figures."""
    lines = [list(head), ["---"] + ["---:"] * (len(head) - 1), *map(list, rows)]
    return [f"| {' | '.join(part.replace('|', chr(92) + '|') for part in line)} |" for line in lines]


def not_run(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each reason why runs are missing, and which ones they are."""
    by_reason: dict[tuple[str, ...], list[Job]] = {}
    for one in outcomes:
        if one.status in ("failed", "refused"):
            point = ", ".join(f"{key}={value}" for key, value in one.job.point.items())
            who = title(one.job) + (f", {point}" if point else f" in {one.job.setting}")
            by_reason.setdefault((who, one.status, one.reason), []).append(one.job)
    lines = []
    for (who, status, reason), jobs in by_reason.items():
        tasks = dict.fromkeys(f"{job.value('data.source')} -> {job.value('data.target')}" for job in jobs)
        seeds = dict.fromkeys(str(job.seed) for job in jobs)
        where = f" ({', '.join(tasks)}; seeds {', '.join(seeds)})" if status == "failed" else ""
        lines.append(f"- {who}{where}, {status}: {reason}")
    return lines


def title(job: Job) -> str:
    """Its row's name, else the method, and the base model where that is not the plain one."""
    return job.row or title_of(job.value("method.name"), job.value("method.base"))


# --- files ---------------------------------------------------------------------------------------


def write_csv(file: Path, outcomes: Sequence[Outcome]) -> None:
    """A row a job."""
    fields = list(outcomes[0].job.point)
    free = list(dict.fromkeys(key for one in outcomes if one.summary and fields for key in one.summary.label_free))
    row = ["row"] if any(one.job.row for one in outcomes) else []
    head = [*fields, *row, "method", "base", "recipe", "setting", "source", "target", "seed", *METRICS, *free]
    rows: list[list[Any]] = [[*head, "steps", "seconds", "verdict", "status", "reason"]]
    keys = ("method.name", "method.base", "method.recipe")
    for one in outcomes:
        job, found = one.job, one.summary
        figures = [None] * len(METRICS) if found is None else [found[metric] for metric in METRICS]
        figures += [None if found is None else found.label_free.get(key) for key in free]
        rows.append(
            [*job.point.values(), *(title(job) for _ in row), *map(job.value, keys), job.setting,
             job.value("data.source"), job.value("data.target"), job.seed, *figures,
             None if found is None else found.steps, one.seconds, verdict(one), one.status, one.reason]
        )  # fmt: skip
    files.write_csv(file, rows)


def verdicts(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each kind of finding and row, and of how many of its runs it is said."""
    runs: dict[str, int] = {}
    wrong: dict[tuple[str, str], int] = {}
    for one in outcomes:
        if one.summary is not None:
            who = f"{title(one.job)} in {one.job.setting}"
            runs[who] = runs.get(who, 0) + 1
            for name in verdict(one).split():
                wrong[who, name] = wrong.get((who, name), 0) + 1
    return [f"- {who}: {name.replace('_', ' ')} in {n} of {counted(runs[who], 'run')}"
            for (who, name), n in wrong.items()]  # fmt: skip


def verdict(one: Outcome) -> str:
    """The names of what is known to be wrong with a run."""
    return " ".join(finding["name"] for finding in one.summary.verdict) if one.summary is not None else ""


def write_lines(file: Path, lines: Sequence[str]) -> None:
    write_atomically(file, ("\n".join(lines).rstrip() + "\n").encode())
