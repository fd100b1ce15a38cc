"""What a table comes to, beside what the paper prints: table.md, table.csv and table.tex, and results as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastget import bases
from fastget.archive import record
from fastget.archive.record import DoneRun
from fastget.archive.statistics import (
    FINAL,
    ORACLE,
    Mean,
    choices_of,
    markdown,
    mean_over_seeds,
    mean_over_tasks,
    shown,
    words,
    write_lines,
)
from fastget.common import files
from fastget.common.text import counted
from fastget.studies.jobs import Outcome
from fastget.studies.outcomes import not_run, state
from fastget.studies.reproduce.recipe import Part, TableRow
from fastget.studies.reproduce.run import TEXT, Reproduction, place
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


LEGEND = (
    "Per cent, as in the paper: *paper* is what it prints, *ours* the mean ± std over seeds of the final models, "
    "*difference* ours less the paper's. Target labels selected nothing. A row without *ours* was not run: fastget has "
    "no such method, or it was not asked for."
)
SELECTION = (
    f"Other choices of an iterate, from the evaluations of each run. *{ORACLE}* is chosen by the target's labels, "
    "which nobody has who adapts: it is no result, and shows what such a choice would have hidden."
)


def write(what: Reproduction, out: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """All of them; their places."""
    figures = Figures(what, out, outcomes, iterates=True)
    write_lines(out / "table.md", _markdown(what, figures, outcomes))
    files.write_csv(out / "table.csv", _csv(what, figures))
    write_lines(out / "table.tex", _latex(what, figures))
    return [*(out / f"table.{kind}" for kind in ("md", "csv", "tex")), *_results(what, figures)]


# --- the table in the paper's shape --------------------------------------------------------------


def _lines(what: Reproduction, figures: Figures, part: Part) -> list[tuple[TableRow, str, list[str]]]:
    """Row, whose numbers, a text a column: the paper's, ours, the difference, those of them that there are."""
    lines = []
    for row in what.table.rows:
        cells = [figures.cell(part, row, column) for column in part.columns]
        if any(cell.reported for cell in cells):
            lines.append((row, "paper", [cell.reported or "" for cell in cells]))
        if what.runs(row):
            lines.append((row, "ours", [_ours(what, cell) for cell in cells]))
        if any(cell.difference is not None for cell in cells):
            lines.append((row, "difference", [_signed(cell) for cell in cells]))
    return lines


def _ours(what: Reproduction, cell: Cell) -> str:
    if cell.ours is None:
        return cell.state
    return shown(cell.ours) + (f" (n = {cell.ours.n})" if cell.ours.n != len(what.seeds) else "")


def _signed(cell: Cell) -> str:
    return "" if cell.difference is None else f"{cell.difference:+.1f}"


def _markdown(what: Reproduction, figures: Figures, outcomes: Sequence[Outcome]) -> list[str]:
    lines = [f"# {what.table.title}", "", f"Recipe `{what.recipe}`, {counted(len(what.seeds), 'seed')}.", "", LEGEND]
    for part in what.table.parts:
        body = [[f"{row_title(row)}, {whose}", *texts] for row, whose, texts in _lines(what, figures, part)]
        head = [f"n = {len(what.seeds)}", *map(_arrows, part.columns)]
        lines += ["", f"## {part.title}, {words(part.metric)}", "", *markdown(head, body)]
    lines += ["", "## Selection", "", SELECTION]
    for part, column in _headlines(what):
        head = [f"{part.title}, {_arrows(column)}", *figures.selections]
        lines += ["", *markdown(head, _selections(what, figures, part, column))]
    if why := not_run(outcomes):
        lines += ["", "## Not there, and why", "", *why]
    return lines


def _headlines(what: Reproduction) -> list[tuple[Part, str]]:
    return [(part, column) for part in what.table.parts for column in part.headlines(what.tasks)]


def _selections(what: Reproduction, figures: Figures, part: Part, column: str) -> list[list[str]]:
    """A row a method: its figure in a column by every selection."""
    rows = []
    for row in filter(what.runs, what.table.rows):
        found = [figures.cell(part, row, column, name) for name in figures.selections]
        rows.append([row_title(row), *(shown(cell.ours) if cell.ours else cell.state for cell in found)])
    return rows


def _arrows(column: str) -> str:
    return column.replace("<->", "↔").replace("->", "→")


def _csv(what: Reproduction, figures: Figures) -> list[list[Any]]:
    """A line a row, column and selection; in per cent."""
    lines: list[list[Any]] = [["table", "data", "setting", "metric", "base", "method", "task", "selection", "reported",
                               "ours", "std", "n", "difference", "status"]]  # fmt: skip
    for part in what.table.parts:
        for row in what.table.rows:
            for column in part.columns:
                for selection in figures.selections if what.runs(row) else [""]:
                    cell = figures.cell(part, row, column, selection or FINAL)
                    if cell.reported is None and not selection:
                        continue
                    status = "" if not selection else "done" if cell.ours else cell.state
                    head = [what.table.name, part.data, part.name, part.metric, row.group, row.label, column]
                    lines.append([*head, selection, cell.reported, *_numbers(cell), status])
    return lines


def _numbers(cell: Cell) -> list[Any]:
    """ours, std, n, difference."""
    if cell.ours is None:
        return [None, None, 0, None]
    std = None if cell.ours.std is None else round(100 * cell.ours.std, 3)
    difference = None if cell.difference is None else round(cell.difference, 3)
    return [round(100 * cell.ours.mean, 3), std, cell.ours.n, difference]


def _latex(what: Reproduction, figures: Figures) -> list[str]:
    """A tabular a part, and one of its headline by every selection, with booktabs."""
    lines = [f"% {what.table.title}: recipe {what.recipe}, {counted(len(what.seeds), 'seed')}; needs booktabs"]
    for part in what.table.parts:
        columns = "".join("r" for _ in part.columns)
        head = [_tex(part.title), "", *map(_tex, part.columns)]
        lines += ["", rf"\begin{{tabular}}{{ll{columns}}}", r"\toprule", " & ".join(head) + r" \\"]
        before = None
        for row, whose, texts in _lines(what, figures, part):
            lines += [r"\midrule"] if before is None or row.group != before.group else []
            named = "" if row is before else _tex(row_title(row))
            lines.append(" & ".join([named, whose, *map(_tex, texts)]) + r" \\")
            before = row
        lines += [r"\bottomrule", r"\end{tabular}"]
    for part, column in _headlines(what):
        head = [_tex(f"{part.title}, {column}"), *map(_tex, figures.selections)]
        columns = "".join("r" for _ in figures.selections)
        lines += ["", "% other choices of an iterate; the oracle's is chosen by the target's labels, and is no result",
                  rf"\begin{{tabular}}{{l{columns}}}", r"\toprule", " & ".join(head) + r" \\", r"\midrule"]  # fmt: skip
        lines += [" & ".join(map(_tex, texts)) + r" \\" for texts in _selections(what, figures, part, column)]
        lines += [r"\bottomrule", r"\end{tabular}"]
    return lines


def _tex(text: str) -> str:
    for sign in "&%#_":
        text = text.replace(sign, f"\\{sign}")
    text = text.replace("<->", r"$\leftrightarrow$").replace("->", r"$\to$")
    return text.replace("±", r"$\pm$").replace("+", "$+$") if text[:1] != "-" else f"$-${text[1:]}"


# --- results as data -----------------------------------------------------------------------------


def _results(what: Reproduction, figures: Figures) -> list[Path]:
    """A file a part and row that has a figure of ours; the folder."""
    found = [
        _record(what, figures, part, row) for part in what.table.parts for row in filter(what.runs, what.table.rows)
    ]
    return record.write(figures.out / "results", [one for one in found if one is not None])


def _record(what: Reproduction, figures: Figures, part: Part, row: TableRow) -> record.Record | None:
    columns = {column: figures.runs(part, row, column) for column in part.columns}
    columns = {column: tasks for column, tasks in columns.items() if all(tasks)}  # what --tasks leaves out is not there
    if not columns:
        return None
    assert row.method is not None
    theirs = next(one.job.value("method.recipe") for column in columns for one in figures.outcomes(part, row, column))
    recipe = TEXT if what.recipe == TEXT else theirs
    whose = record.RecordHead(
        data=part.data, setting=part.setting, method=row.method, base=row.base, recipe=recipe, title=row_title(row),
        metric=part.metric, study=f"reproduce {what.table.name}", variant=row.name if row.set else "",
    )  # fmt: skip
    headline = part.headline if part.headline in columns else next(iter(columns))
    return record.build(whose, columns, headline, {column: part.reported(row, column) for column in columns})
