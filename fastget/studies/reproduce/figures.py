"""What the runs of a table come to, beside what the paper prints: final models, and other choices of an iterate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastget import bases
from fastget.archive.record import DoneRun
from fastget.archive.selections import FINAL, choices_of
from fastget.archive.statistics import Mean, mean_over_seeds, mean_over_tasks
from fastget.studies.jobs import Outcome
from fastget.studies.outcomes import state
from fastget.studies.reproduce.plan import Reproduction, place
from fastget.studies.reproduce.recipe import Part, TableRow
from fastget.studies.tasks import Task


@dataclass(frozen=True)
class Cell:
    """A row's number in a column."""

    reported: str | None  # per cent, as the paper prints it
    ours: Mean | None  # a share of 1
    state: str  # why there is none of ours

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in points."""
        if self.ours is None or self.reported is None:
            return None
        return 100 * self.ours.mean - float(self.reported)


def row_title(row: TableRow) -> str:
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
                self._chosen[one.job.folder] = choices_of(one.job.folder, metrics[one.job.setting])

    @property
    def selections(self) -> list[str]:
        """Those that some run has, the headline first."""
        return [FINAL, *dict.fromkeys(name for found in self._chosen.values() for name in found)]

    def outcomes(self, part: Part, row: TableRow, column: str) -> list[Outcome]:
        return [one for task in part.of(column) for one in self._of(part, row, task)]

    def runs(self, part: Part, row: TableRow, column: str) -> list[list[DoneRun]]:
        """Those that are done, of each task behind a column."""
        found = [self._of(part, row, task) for task in part.of(column)]
        return [[DoneRun(one.job.folder, one.summary) for one in some if one.summary is not None] for some in found]

    def cell(self, part: Part, row: TableRow, column: str, selection: str = FINAL) -> Cell:
        by_task = [self._values(part, row, task, selection) for task in part.of(column)]
        ours = mean_over_tasks(by_task) if column in part.means else mean_over_seeds(by_task[0])
        whole = all(self._of(part, row, task) for task in part.of(column))
        found = self.outcomes(part, row, column)
        return Cell(part.reported(row, column), ours, "not run" if not whole else state(found))

    def _of(self, part: Part, row: TableRow, task: Task) -> list[Outcome]:
        return self._by_place.get(place(self.out, part, row, task), [])

    def _values(self, part: Part, row: TableRow, task: Task, selection: str) -> dict[int, float]:
        found = {}
        for one in self._of(part, row, task):
            if one.summary is not None:
                chosen = self._chosen.get(one.job.folder, {})
                found[one.job.seed] = one.summary[part.metric] if selection == FINAL else chosen.get(selection)
        return {seed: value for seed, value in found.items() if value is not None}
