"""Tables in Markdown pages, made from results: methods as rows, settings as columns.

A page says between two markers which results it shows, and everything between them is made anew:

    <!-- results: digits/uda, office31-features/pda -->
    <!-- results end -->

`; methods: source-only, get` keeps those rows alone, `; provenance` adds a line on what each column was made on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastget import bases, methods
from fastget.archive.plots import Dot
from fastget.archive.record import Record, read_all
from fastget.archive.statistics import Mean, cell, markdown, marks, words
from fastget.common.files import write_atomically
from fastget.common.text import counted, nearest

BASELINE = "source-only"
LEGEND = (
    "Per cent, final models, mean ± std over n seeds; arrows: points against `source-only`; **bold**: the best of its "
    "column, †: within one std of it."
)
BEGIN = re.compile(r"^<!-- results: (?P<what>[^>]+?) -->$", re.MULTILINE)
END = "<!-- results end -->"


def pages(root: Path) -> list[Path]:
    """README and docs: those that show results."""
    found = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [page for page in found if page.is_file() and BEGIN.search(page.read_text(encoding="utf-8"))]


def fill(page: Path, results: Path) -> bool:
    """Make the tables of a page anew. Whether it changed."""
    before = page.read_text(encoding="utf-8")
    after = filled(before, read_all(results), str(page))
    if before != after:
        write_atomically(page, after.encode())
    return before != after


def filled(text: str, records: Sequence[Record], where: str) -> str:
    """The page as the results have it. ValueError names a result that is not there, or a marker without an end."""
    out, at = [], 0
    for begin in BEGIN.finditer(text):
        end = text.find(END, begin.end())
        if end < 0 or begin.start() < at:
            raise ValueError(f"{where}: {begin[0]} has no {END} of its own")
        out += [text[at : begin.end()], "\n", "\n".join(leaderboard(begin["what"], records, where)), "\n"]
        at = end
    return "".join([*out, text[at:]])


def leaderboard(what: str, records: Sequence[Record], where: str) -> list[str]:
    """`what` is `DATA/SETTING, DATA/SETTING; methods: NAME, NAME; provenance`."""
    places, *options = (part.strip() for part in what.split(";"))
    wanted, provenance = None, False
    for option in options:
        if option.startswith("methods:"):
            wanted = _names(option.removeprefix("methods:"))
        elif option == "provenance":
            provenance = True
        else:
            raise ValueError(f"{where}: after a semicolon stands `methods: NAME, NAME` or `provenance`, got {option!r}")
    columns = _columns(places, records, where)
    rows = _rows([one for column in columns.values() for one in column.values()], wanted)
    texts = [_column(column, list(rows)) for column in columns.values()]
    body = [[title, *(text[number] for text in texts)] for number, title in enumerate(rows.values())]
    heads = [f"{name.replace('/', '<br>')}, n = {_usual(column)}" for name, column in columns.items()]
    return [*markdown(["method", *heads], body), "", LEGEND, *(_provenance(columns) if provenance else [])]


def panels(places: str, records: Sequence[Record]) -> dict[str, list[Dot]]:
    """Of `DATA/SETTING, DATA/SETTING`: what `compare` draws, a panel a place and a dot a row."""
    columns = _columns(places, records, "results plot")
    rows = _rows([one for column in columns.values() for one in column.values()], None)
    drawn = {}
    for place, found in columns.items():
        figures = [_figure(found[name]) if name in found else None for name in rows]
        drawn[place] = [
            Dot(title.replace("`", ""), figure, mark, _seeds(found[name]) if name in found else [], "not run")
            for (name, title), figure, mark in zip(rows.items(), figures, marks(figures), strict=True)
        ]
    return drawn


def _seeds(record: Record) -> list[float]:
    return [value / 100 for value in record.tasks[record.headline].per_seed.values()]


def _columns(places: str, records: Sequence[Record], where: str) -> dict[str, dict[str, Record]]:
    """Place -> name -> result."""
    columns: dict[str, dict[str, Record]] = {}
    for name in _names(places):
        found = {one.name: one for one in records if f"{one.data}/{one.setting}" == name}
        if not found:
            known = list(dict.fromkeys(f"{one.data}/{one.setting}" for one in records))
            raise ValueError(f"{where}: no results of {name!r}{nearest(name, known)}: there are {', '.join(known)}")
        columns[name] = found
    return columns


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _rows(records: Sequence[Record], wanted: Sequence[str] | None) -> dict[str, str]:
    """Name -> title, the baseline first, then in the registry's order; `get, paper's values` comes after `get`."""
    known = [BASELINE, *(name for name in methods.names() if name != BASELINE)]
    rows = {one.name: one for one in records if wanted is None or one.name in wanted}

    def place(one: Record) -> tuple[int, bool, str]:
        plain = one.base == bases.DEFAULT and one.method in known
        return known.index(one.method) if plain else len(known), one.name != one.method, one.name

    def title(one: Record) -> str:
        if one.name in known:
            return f"`{one.name}`"
        whole, comma, more = one.row.partition(", ")
        return f"`{whole}`{comma}{more}" if whole in known else one.row

    return {one.name: title(one) for one in sorted(rows.values(), key=place)}


def _column(found: Mapping[str, Record], rows: Sequence[str]) -> list[str]:
    """A cell a row: mean ± std, and an arrow against source-only."""
    figures = [_figure(found[name]) if name in found else None for name in rows]
    usual = _usual(found)
    below = found.get(BASELINE)
    texts = []
    for name, figure, mark in zip(rows, figures, marks(figures), strict=True):
        text = cell(figure, mark, usual)
        if figure is not None and below is not None and name != BASELINE:
            text += f" {_arrow(found[name], below)}"
        texts.append(text)
    return texts


def _usual(found: Mapping[str, Record]) -> int:
    """Seeds of a column; a cell of fewer says so."""
    return max(one.n for one in found.values())


def _figure(record: Record) -> Mean:
    assert record.ours is not None  # what has none is no record
    return Mean(record.ours / 100, None if record.std is None else record.std / 100, record.n)


def _arrow(record: Record, below: Record) -> str:
    assert record.ours is not None
    assert below.ours is not None
    gain = record.ours - below.ours
    return "=" if abs(gain) < 0.05 else f"{'↑' if gain > 0 else '↓'} {abs(gain):.1f}"


def _provenance(columns: Mapping[str, Mapping[str, Record]]) -> list[str]:
    """What the figures are of, a line per column."""
    by_words: dict[str, list[str]] = {}
    for name, column in columns.items():
        by_words.setdefault(_about(list(column.values())), []).append(name.replace("/", ", "))
    return ["", *(f"- {'; '.join(names)}: {about}." for about, names in by_words.items())]


def _about(records: Sequence[Record]) -> str:
    first = records[0]
    commits = sorted({one[:12] for record in records for one in record.commit})
    machines = sorted({one.split(";")[0] for record in records for one in record.machine})
    backbones = sorted({record.backbone["name"] for record in records if "name" in record.backbone})
    tasks = counted(first.tasks[first.headline].tasks, "task")
    by = f"backbone {', '.join(backbones) or 'unknown'}; commit {', '.join(commits)}, on {'; '.join(machines)}"
    return f"{words(first.metric)}, {tasks}, {by}"
