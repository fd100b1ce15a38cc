"""What a target is made of, for people: classes.csv, a short table, and the picture of it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastget.common.files import made_whole, write_csv
from fastget.common.text import and_more, printable
from fastget.evaluation.classes import Classes
from fastget.runs.sinks.display import percent

ROWS = 10  # of the printed table
COLUMN, SHOWN = 60, 180  # classes in a column of the picture, and in all of it
BAR, FAINT, LINE, TRUTH = "#56B4E9", "#999999", "#333333", "#D55E00"  # Okabe and Ito's, as in the studies


def made_of(target: str) -> str:
    """The title of a run's."""
    return f"what {target} is made of"


# --- the file ------------------------------------------------------------------------------------


def write_classes(file: Path, found: Classes) -> None:
    """A row a class, in the classes' order."""
    write_csv(file, _rows(found))


def _rows(found: Classes) -> Iterator[list[Any]]:
    figures = {"share": found.share, "low": found.low, "high": found.high, "true_share": found.truth}
    known = {name: [f"{value:.6f}" for value in column] for name, column in figures.items() if column is not None}
    known["predicted"] = [str(value) for value in found.predicted.tolist()]
    if found.absent is not None:
        known["probably_absent"] = [str(value).lower() for value in found.absent.tolist()]
    order = ("share", "low", "high", "predicted", "probably_absent", "true_share")
    head = [name for name in order if name in known]
    yield ["class", *head]
    for i, name in enumerate(found.names):
        yield [name, *(known[column][i] for column in head)]


# --- the terminal --------------------------------------------------------------------------------


def show_classes(console: Console, found: Classes, what: str, rows: int = ROWS) -> None:
    """The largest few (none: no table), how much the others come to, and those that are probably absent; or that it
    cannot be known."""
    if found.untold:
        console.print(Text(f"{printable(what)} is not told: {found.untold}"), soft_wrap=True)
        return
    title = f"{printable(what)}, by the predictions for {found.images:,} images"
    words = []
    if rows:
        console.print(Text(title), soft_wrap=True)
        console.print(_table(found, rows))
        if rest := found.largest()[rows:]:
            words.append(f"{_classes(len(rest), 'other ')}: {percent(float(found.share[rest].sum()))}")
    words.append(_absent(found))
    if found.total_variation is not None:
        words.append(f"total variation to the labels: {percent(found.total_variation)}")
    for line in words if rows else [f"{title}: {'; '.join(words)}"]:
        console.print(Text(line), soft_wrap=True)


def _absent(found: Classes) -> str:
    if found.low is None:
        words, gone = "predicted for no image", found.predicted == 0
    elif found.absent is None:
        return "which classes are absent cannot be known: the predictions have collapsed"
    else:
        words, gone = "probably absent", found.absent
    absent = [printable(name) for name, without in zip(found.names, gone.tolist(), strict=True) if without]
    return f"{words}, {len(absent)} of {_classes(len(found.names))}: {and_more(absent) or 'none'}"


def _classes(number: int, kind: str = "") -> str:
    return f"{number:,} {kind}{'class' if number == 1 else 'classes'}"


def _table(found: Classes, rows: int) -> Table:
    table = Table()
    table.add_column("class")
    for name in ("share", *(["interval"] if found.low is not None else []), "images"):
        table.add_column(name, justify="right")
    if found.truth is not None:
        table.add_column("labels", justify="right")
    for i in found.largest()[:rows]:
        cells = [percent(float(found.share[i]))]
        if found.low is not None and found.high is not None:
            cells.append(f"{100 * found.low[i]:.1f} to {100 * found.high[i]:.1f} %")
        cells.append(f"{int(found.predicted[i]):,}")
        if found.truth is not None:
            cells.append(percent(float(found.truth[i])))
        table.add_row(Text(printable(found.names[i])), *cells)
    return table


# --- the picture ---------------------------------------------------------------------------------


def draw_classes(file: Path, found: Classes, what: str) -> None:
    """classes.png."""
    figure = classes_figure(found, what)
    with made_whole(file) as making, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)  # a box is drawn
        figure.savefig(making)


def classes_figure(found: Classes, what: str) -> Any:
    """Shares as bars, the largest first, with their intervals, and the true ones where they are known."""
    from matplotlib.figure import Figure

    shown, rest = found.largest()[:SHOWN], found.largest()[SHOWN:]
    columns = math.ceil(len(shown) / COLUMN)
    rows = math.ceil(len(shown) / columns)
    # places are in inches: matplotlib's own layout takes seconds for many classes
    names = 0.3 + 0.065 * max(len(_label(found, i)) for i in shown)
    bars = 4.5 if columns == 1 else 2.6
    bottom, plot, top = 0.75, 0.17 * max(rows, 3), 0.4
    width, height = columns * (names + bars) + 0.15, bottom + plot + top
    figure = Figure(figsize=(width, height), dpi=100)
    for column in range(columns):
        left = (column + 1) * names + column * bars
        axis = figure.add_axes((left / width, bottom / height, (bars - 0.1) / width, plot / height))
        _draw_column(axis, found, shown[column * rows : (column + 1) * rows])
        axis.set_ylim(rows - 0.4, -0.6)
    others = f"; {_classes(len(rest), 'other ')}: {percent(float(found.share[rest].sum()))}" if rest else ""
    title = f"{printable(what)}: {found.images:,} images{others}"
    figure.text(0.1 / width, 1 - 0.1 / height, title, fontsize=9, va="top", parse_math=False)
    figure.text(0.1 / width, 0.1 / height, _legend(found, columns), fontsize=8, va="bottom")
    return figure


def _draw_column(axis: Any, found: Classes, part: list[int]) -> None:
    y = range(len(part))
    axis.barh(y, 100 * found.share[part], color=BAR, height=0.75)
    ends = [found.share[part]]
    if found.low is not None and found.high is not None:
        axis.hlines(y, 100 * found.low[part], 100 * found.high[part], color=LINE, linewidth=1)
        ends.append(found.high[part])
    if found.truth is not None:
        axis.plot(100 * found.truth[part], y, "D", color=TRUTH, markersize=3.5, linestyle="none", clip_on=False)
        ends.append(found.truth[part])
    axis.set_xlim(0, 105 * max(float(end.max()) for end in ends) or 1)
    grey = np.zeros(len(found.names)) if found.absent is None else found.absent
    axis.set_yticks(y, [_label(found, i) for i in part], fontsize=7)
    for i, label in zip(part, axis.get_yticklabels(), strict=True):
        label.set(parse_math=False, color=FAINT if grey[i] else "black")  # a class may be named $x$
    axis.tick_params(axis="x", labelsize=7)
    axis.grid(axis="x", alpha=0.25)
    axis.set_axisbelow(True)


def _legend(found: Classes, columns: int) -> str:
    first = ["bar: share of the predictions, %", *(["line: interval"] if found.low is not None else [])]
    second = ["grey name: probably absent"] if found.absent is not None else []
    if found.total_variation is not None:
        second.append(f"◆ labels (total variation {percent(found.total_variation)})")
    if columns > 1:
        second.append("each column has its own scale")
    return ";  ".join(first) + "\n" + ";  ".join(second)


def _label(found: Classes, i: int) -> str:
    return printable(found.names[i], 24)
