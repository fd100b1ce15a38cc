"""The plots of the studies. Colours are Okabe and Ito's, told apart by colour-blind readers; shapes say the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastget.archive.statistics import Mark, Mean
from fastget.common.files import made_whole

BEST, NEAR, OTHER, FAINT = "#0072B2", "#E69F00", "#333333", "#999999"
STYLES: dict[Mark, tuple[str, str, str]] = {  # mark -> colour, shape, words
    "best": (BEST, "D", "best"),
    "near": (NEAR, "s", "within one std of the best"),
    "": (OTHER, "o", "others"),
}
WIDE = 3  # panels in a row


class Dot(NamedTuple):
    """A row of a panel."""

    name: str
    figure: Mean | None
    mark: Mark
    single: list[float]  # faint, beside the mean: the seeds
    state: str  # why there is no figure


def draw_panels(panels: Mapping[str, Sequence[Dot]], metric: str, file: Path) -> Path:
    """A panel a setting, a row a method: mean and std as a dot with a bar."""
    names = [dot.name for dot in next(iter(panels.values()))]
    figure, axes = _panels(len(panels), (3.4, 1.2), (0.3 * len(names) + 1.0, 0.4), sharey=True)
    for axis, (setting, dots) in zip(axes, panels.items(), strict=False):
        for y, dot in enumerate(dots):
            _draw_dot(axis, y, dot)
        axis.set_title(setting, loc="left", fontsize=10)
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.grid(axis="x", alpha=0.25)
    figure.supxlabel(f"{metric}, %: mean over tasks, ± std over seeds (faint: single seeds)", fontsize=9)
    used = {dot.mark for dots in panels.values() for dot in dots if dot.figure is not None}
    styles = [style for mark, style in STYLES.items() if mark in used]
    handles = [axes[0].plot([], [], shape, color=colour, label=text)[0] for colour, shape, text in styles]
    if handles:
        figure.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    return _save(figure, file)


def _draw_dot(axis: Any, y: int, dot: Dot) -> None:
    if dot.figure is None:
        axis.text(0.02, y, dot.state, transform=axis.get_yaxis_transform(), fontsize=8, color=FAINT, va="center")
        return
    colour, shape, _ = STYLES[dot.mark]
    axis.plot([100 * value for value in dot.single], [y] * len(dot.single), "|", color=FAINT, markersize=7, alpha=0.8)
    std = 100 * (dot.figure.std or 0)
    axis.errorbar(100 * dot.figure.mean, y, xerr=std or None, fmt=shape, color=colour, markersize=5, capsize=3)


def draw_lines(fields: Mapping[str, Mapping[str, Mean | None]], metric: str, file: Path, note: str = "") -> Path:
    """A panel a field: its values, equally spaced, against the metric, with the std over seeds."""
    figure, axes = _panels(len(fields), (4.2, 0.6), (3.2, 0.5), sharey=True)
    for axis, (field, points) in zip(axes, fields.items(), strict=False):
        known = [(x, point) for x, point in enumerate(points.values()) if point is not None]
        means, stds = ([100 * (point[i] or 0) for _, point in known] for i in (0, 1))
        axis.errorbar([x for x, _ in known], means, yerr=stds, fmt="o-", color=BEST, capsize=3, markersize=5)
        axis.set_xticks(range(len(points)), list(points))
        axis.set_xlim(-0.5, len(points) - 0.5)
        axis.set_xlabel(field)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel(f"{metric}, %")
    figure.suptitle(f"mean ± std over seeds{note}", fontsize=9, x=0.01, ha="left")
    return _save(figure, file)


def draw_grid(
    fields: tuple[str, str],
    values: tuple[Sequence[str], Sequence[str]],
    cells: Mapping[tuple[str, str], Mean | None],
    metric: str,
    file: Path,
) -> Path:
    """Two fields as a heat map, the figures written in it, the best in a frame."""
    rows, columns = values
    figure, (axis,) = _panels(1, (1.05 * len(columns), 3.0), (0.55 * len(rows), 1.9))
    means = {key: 100 * found.mean for key, found in cells.items() if found is not None}
    table = [[means.get((row, column), math.nan) for column in columns] for row in rows]
    low, high = min(means.values(), default=0), max(means.values(), default=1)
    image = axis.imshow(table, cmap="cividis", aspect="auto", vmin=low, vmax=max(high, low + 1e-9))
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            _write_cell(axis, x, y, cells.get((row, column)), (low + high) / 2, high)
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    axis.set(xlabel=fields[1], ylabel=fields[0])
    figure.colorbar(image, label=f"{metric}, %")
    figure.suptitle("mean, and ± std over seeds; framed: the best", fontsize=9, x=0.01, ha="left")
    return _save(figure, file)


def _write_cell(axis: Any, x: int, y: int, found: Mean | None, middle: float, high: float) -> None:
    if found is None:
        axis.text(x, y, "none", ha="center", va="center", fontsize=8, color=FAINT)
        return
    mean = 100 * found.mean
    text = f"{mean:.1f}" + ("" if found.std is None else f"\n± {100 * found.std:.1f}")
    axis.text(x, y, text, ha="center", va="center", fontsize=8, color="black" if mean > middle else "white")
    if mean == high:
        from matplotlib.patches import Rectangle

        axis.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, fill=False, edgecolor="black", linewidth=2))


def draw_bars(panels: Mapping[str, Mapping[str, float]], label: str, file: Path) -> Path:
    """A panel a case, a bar a row: what each costs, the first of a case in grey."""
    figure, axes = _panels(len(panels), (3.6, 0.8), (0.3 * max(map(len, panels.values())) + 0.9, 0.4))
    for axis, (case, bars) in zip(axes, panels.items(), strict=False):
        axis.barh(list(bars), list(bars.values()), color=[FAINT, *([BEST] * (len(bars) - 1))], height=0.6)
        axis.invert_yaxis()
        axis.set_title(case, loc="left", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(axis="x", alpha=0.25)
    figure.supxlabel(label, fontsize=9)
    return _save(figure, file)


def _panels(
    count: int, wide: tuple[float, float], high: tuple[float, float], *, sharey: bool = False
) -> tuple[Any, list[Any]]:
    """A figure of so many panels; the inches of each, and those beside all of them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    across = min(WIDE, count)
    down = math.ceil(count / across)
    size = wide[0] * across + wide[1], high[0] * down + high[1]
    figure = Canvas(figsize=size, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(down, across, squeeze=False, sharey=sharey).flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes


def _save(figure: Any, file: Path) -> Path:
    with made_whole(file) as making:
        figure.savefig(making)
    return file
