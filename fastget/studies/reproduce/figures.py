"""What the runs of a table come to, beside what the paper prints: final models, and other choices of an iterate.

The headline is the final model. The best iterate is an oracle: who adapts has no labels to find it by. It is shown to
tell what such a choice would have hidden, beside choices that need no target labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastget import bases
from fastget.runs.folder import METRICS as LOG
from fastget.runs.sinks import jsonl
from fastget.studies.jobs import Outcome
from fastget.studies.reproduce.plan import Reproduction, place
from fastget.studies.reproduce.recipe import Part, Row
from fastget.studies.results import Figure, Metric, over_seeds, over_tasks, state
from fastget.studies.tasks import Task

FINAL, ORACLE = "final", "best iterate (oracle)"
VALIDATION = "validation_mean_class_accuracy"  # in metrics.jsonl, where a run has such a list


@dataclass(frozen=True)
class Cell:
    """A row's number in a column."""

    reported: str | None  # per cent, as the paper prints it
    ours: Figure | None  # a share of 1
    state: str  # why there is none of ours

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in points."""
        if self.ours is None or self.reported is None:
            return None
        return 100 * self.ours.mean - float(self.reported)


def title_of(row: Row) -> str:
    """The row, as the paper names it."""
    base = bases.settings_of(row.base).title or row.group
    if row.label == "none":  # nothing on the base model
        return base
    return row.label if row.base == bases.DEFAULT else f"{row.label} on {base}"


class Figures:
    """Ours and theirs, by part, row and column."""

    def __init__(self, what: Reproduction, out: Path, outcomes: Sequence[Outcome], *, iterates: bool = False) -> None:
        """`iterates`: read every run's evaluations too, for the other selections."""
        self.what, self.out = what, out
        self._by_place: dict[Path, list[Outcome]] = {}
        self._chosen: dict[Path, dict[str, float]] = {}  # run -> selection -> its figure
        metrics = {part.title: part.metric for part in what.table.parts}
        for one in outcomes:
            self._by_place.setdefault(one.job.folder.parent, []).append(one)
            if iterates and one.status == "done":
                self._chosen[one.job.folder] = choices(jsonl.read(one.job.folder / LOG), metrics[one.job.setting])

    @property
    def selections(self) -> list[str]:
        """Those that some run has, the headline first."""
        return [FINAL, *dict.fromkeys(name for found in self._chosen.values() for name in found)]

    def outcomes(self, part: Part, row: Row, column: str) -> list[Outcome]:
        return [one for task in part.of(column) for one in self._of(part, row, task)]

    def cell(self, part: Part, row: Row, column: str, selection: str = FINAL) -> Cell:
        by_task = [self._values(part, row, task, selection) for task in part.of(column)]
        ours = over_tasks(by_task) if column in part.means else over_seeds(by_task[0])
        whole = all(self._of(part, row, task) for task in part.of(column))
        found = self.outcomes(part, row, column)
        return Cell(part.reported(row, column), ours, "not run" if not whole else state(found))

    def _of(self, part: Part, row: Row, task: Task) -> list[Outcome]:
        return self._by_place.get(place(self.out, part, row, task), [])

    def _values(self, part: Part, row: Row, task: Task, selection: str) -> dict[int, float]:
        found = {}
        for one in self._of(part, row, task):
            if one.summary is not None:
                chosen = self._chosen.get(one.job.folder, {})
                found[one.job.seed] = one.summary[part.metric] if selection == FINAL else chosen.get(selection)
        return {seed: value for seed, value in found.items() if value is not None}


def choices(lines: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, float]:
    """Selection -> the metric of the iterate it takes, from the lines of metrics.jsonl; the first on a tie."""
    from fastget.evaluation.selection import CRITERIA

    evaluated = [line for line in lines if line.get(metric) is not None]
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
