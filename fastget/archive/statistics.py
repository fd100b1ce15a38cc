"""What many runs come to: mean and std over seeds, the best and those near it, and the files that say so.

The std is the sample's, over seeds. Over tasks it is the std over seeds of the mean over tasks: each seed gives one
mean, so that it tells how sure the mean is, not how unlike the tasks are.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from fastget.common.files import write_atomically
from fastget.data.datasets import DATA_SETS
from fastget.runs.sinks import jsonl

Metric = Literal["accuracy", "mean_class_accuracy"]
METRICS: tuple[Metric, ...] = get_args(Metric)
Mark = Literal["best", "near", ""]
LEGEND = (
    "**Bold**: the best of its column. †: within one std of the best, the best's own std over seeds. "
    "Figures are per cent, mean ± std over seeds (n of them), of the final models; target labels selected nothing."
)


class Mean(NamedTuple):
    """A mean over seeds."""

    mean: float
    std: float | None  # None: a single seed
    n: int  # seeds


def words(metric: Metric) -> str:
    return metric.replace("_", " ")


def metric_of(data: str) -> Metric:
    """The data set's own, where it is known."""
    return DATA_SETS[data].metric if data in DATA_SETS else "mean_class_accuracy"


def mean_over_seeds(by_seed: Mapping[int, float]) -> Mean | None:
    """Of one task; None without any."""
    if not by_seed:
        return None
    found = list(by_seed.values())
    return Mean(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))


def seed_means(by_task: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Seed -> its mean over tasks, of the seeds that have every task."""
    whole = [seed for seed in by_task[0] if all(seed in task for task in by_task)] if by_task else []
    return {seed: statistics.fmean(task[seed] for task in by_task) for seed in whole}


def mean_over_tasks(by_task: Sequence[Mapping[int, float]]) -> Mean | None:
    """Each seed's mean over tasks, then mean and std of these."""
    return mean_over_seeds(seed_means(by_task))


def marks(figures: Sequence[Mean | None]) -> list[Mark]:
    """The best of a column, and those within one std of it: the best's own."""
    known = [figure for figure in figures if figure is not None]
    if not known:
        return [""] * len(figures)
    best = max(known, key=lambda figure: figure.mean)

    def mark(figure: Mean | None) -> Mark:
        if figure is None:
            return ""
        if figure.mean == best.mean:
            return "best"
        return "near" if best.std is not None and figure.mean >= best.mean - best.std else ""

    return [mark(figure) for figure in figures]


def shown(figure: Mean) -> str:
    """`93.6 ± 1.0`, or `93.6` of one seed."""
    return f"{100 * figure.mean:.1f}" + ("" if figure.std is None else f" ± {100 * figure.std:.1f}")


def cell(figure: Mean | None, mark: Mark, seeds: int, otherwise: str = "-") -> str:
    """A figure in Markdown; n where it is not that of all seeds."""
    if figure is None:
        return otherwise
    text = shown(figure) + (f" (n = {figure.n})" if figure.n != seeds else "")
    return {"best": f"**{text}**", "near": f"{text} †", "": text}[mark]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; the first column is text, the others figures."""
    lines = [list(head), ["---"] + ["---:"] * (len(head) - 1), *map(list, rows)]
    return [f"| {' | '.join(part.replace('|', chr(92) + '|') for part in line)} |" for line in lines]


def write_lines(file: Path, lines: Sequence[str]) -> None:
    write_atomically(file, ("\n".join(lines).rstrip() + "\n").encode())


FINAL, ORACLE = "final", "best iterate (oracle)"
VALIDATION = "validation_mean_class_accuracy"  # in metrics.jsonl, where a run has such a list


def choices_of(run: Path, metric: Metric) -> dict[str, float]:
    """Of a run's folder."""
    from fastget.runs.folder import METRICS as LOG

    return choices(jsonl.read(run / LOG), metric)


def choices(lines: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, float]:
    """Selection -> the metric of the iterate it takes, from the lines of metrics.jsonl; the first on a tie. Where
    evaluations before the last one looked at a draw of the target, iterates are compared on that draw."""
    from fastget.evaluation.selection import CRITERIA

    evaluated = [{**line, **line.get("on_draw", {})} for line in lines if line.get(metric) is not None]
    if not evaluated:
        return {}
    found = {ORACLE: max(line[metric] for line in evaluated)}
    for name, more in CRITERIA.items():
        key = VALIDATION if name == "validation" else name
        known = [line for line in evaluated if line.get(key) is not None]
        if known:
            best = (max if more else min)(known, key=lambda line: float(line[key]))
            found[name.replace("_", " ")] = best[metric]
    return found
