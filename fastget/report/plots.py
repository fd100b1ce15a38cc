"""The report's figures as files for papers and slides: the page's data, drawn by matplotlib as PNG and as PDF."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastget.common.files import made_whole
from fastget.report.figure import Figure, Kind
from fastget.report.page import Report

COLOURS = (
    "#0b6fb8", "#d55e00", "#009e73", "#b8559b", "#c98a00", "#3fa7dd", "#7a5195", "#555d66", "#8c3b2e", "#86a800",
)  # fmt: skip  # the page's
INK, FAINT = "#1a1f26", "#999999"
NAMED = 40  # classes up to which an axis names them


def draw_all(report: Report, folder: Path) -> int:
    """Every figure that has something to show, into `folder`; how many there are."""
    several = len(report.details) > 1
    places = [(figure, figure.id) for figure in report.figures]
    for name, _, own in report.details:
        places += [(figure, f"{figure.id}-{_slug(name)}" if several else figure.id) for figure in own]
    shown = [(figure, stem) for figure, stem in places if figure.data]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure, stem in shown:
            drawn = draw(figure)
            for suffix in (".png", ".pdf"):
                with made_whole(folder / f"{stem}{suffix}") as making:
                    drawn.savefig(making, dpi=150, metadata={"CreationDate": None} if suffix == ".pdf" else None)
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror or error}; choose another --figures") from error
    return len(shown)


def draw(figure: Figure) -> Any:
    """A figure of matplotlib's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(layout="constrained")
    FigureCanvasAgg(canvas)
    _DRAW[figure.kind](canvas, figure.data)
    canvas.suptitle(figure.title, fontsize=11, x=0.01, ha="left")
    return canvas


def _slug(name: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", name).strip("-")


def _lines(canvas: Any, data: Mapping[str, Any]) -> None:
    """A panel a choice."""
    choices = data["choices"]
    axes = _panels(canvas, len(choices), (4.4, 3.2))
    for axis, choice in zip(axes, choices, strict=False):
        for line in choice["series"]:
            points, colour = np.array(line["points"]), _colour(line["colour"])
            axis.plot(points[:, 0], points[:, 1], "--" if line["dash"] else "-", color=colour, label=line["name"])
            if points.shape[1] > 2:
                axis.fill_between(points[:, 0], points[:, 2], points[:, 3], color=colour, alpha=0.15, linewidth=0)
        for x, _ in data["marks"]:
            axis.axvline(x, color=FAINT, linestyle=":", linewidth=1)
        axis.set_xlabel(data["x"])
        axis.set_ylabel(f"{choice['name']}{', %' if choice['unit'] else ''}")
        axis.grid(alpha=0.25)
    if len(choices[0]["series"]) > 1:
        axes[0].legend(fontsize=8, frameon=False)


def _stacks(canvas: Any, data: Mapping[str, Any]) -> None:
    rows = data["rows"]
    canvas.set_size_inches(7, 0.5 * len(rows) + 1.5)
    axis = canvas.subplots()
    left = np.zeros(len(rows))
    for i, part in enumerate(rows[0]["parts"]):
        seconds = np.array([row["parts"][i]["seconds"] for row in rows])
        axis.barh(range(len(rows)), seconds, left=left, color=_colour(i), label=part["name"])
        left += seconds
    axis.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("seconds")
    axis.legend(fontsize=8, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.35))


def _histogram(canvas: Any, data: Mapping[str, Any]) -> None:
    canvas.set_size_inches(5, 3.2)
    axis, edges = canvas.subplots(), np.array(data["edges"])
    below = np.zeros(len(edges) - 1)
    for i, bar in enumerate(data["bars"]):
        axis.bar(edges[:-1], bar["counts"], np.diff(edges), below, align="edge", color=_colour(i), label=bar["name"])
        below += bar["counts"]
    axis.set(xlabel="confidence", ylabel="images", xlim=(0, 1))
    if len(data["bars"]) > 1:
        axis.legend(fontsize=8, frameon=False)


def _shares(canvas: Any, data: Mapping[str, Any]) -> None:
    """The last shares against the labels', and what led there."""
    axes = _panels(canvas, 2, (max(4.4, 0.16 * min(NAMED, len(data["classes"])) + 2), 3.4))
    place = np.arange(len(data["classes"]))
    axes[0].bar(place, data["shares"][-1], color=COLOURS[0], label=f"estimated, step {data['steps'][-1]:,}")
    if "true" in data:
        axes[0].hlines(data["true"], place - 0.45, place + 0.45, color=INK, linewidth=2, label="labels")
    _name_classes(axes[0], data["classes"])
    axes[0].set_ylabel("share, %")
    axes[0].legend(fontsize=8, frameon=False)
    first = data["over_time"]["choices"][0]
    for line in first["series"]:
        points = np.array(line["points"])
        axes[1].plot(points[:, 0], points[:, 1], "o-", markersize=3, color=_colour(line["colour"]), label=line["name"])
    axes[1].set(xlabel="step", ylabel=f"{first['name']}, %")
    axes[1].grid(alpha=0.25)


def _matrix(canvas: Any, data: Mapping[str, Any]) -> None:
    classes = data["classes"]
    side = min(14.0, max(4.5, 0.24 * len(classes) + 2))
    canvas.set_size_inches(side + 0.8, side)
    axis, table = canvas.subplots(), np.zeros((len(classes), len(classes)))
    for i, j, count in data["cells"]:
        table[i, j] = count
    shares = 100 * table / np.maximum(table.sum(1, keepdims=True), 1)
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    if len(classes) <= 15:
        for i, j, count in data["cells"]:
            dark = shares[i, j] > 55
            axis.text(j, i, f"{count:,}", ha="center", va="center", fontsize=7, color="white" if dark else INK)
    _name_classes(axis, classes)
    if len(classes) <= NAMED:
        axis.set_yticks(range(len(classes)), classes, fontsize=8)
    axis.set(xlabel="prediction", ylabel="label")
    canvas.colorbar(image, label="% of the row", shrink=0.7)


def _scatter(canvas: Any, data: Mapping[str, Any]) -> None:
    classes, panels = data["classes"], data["panels"]
    axes = _panels(canvas, len(panels), (4.6, 4.6))
    wheel = np.array([_class_colour(c, len(classes)) for c in range(len(classes))])
    for axis, panel in zip(axes, panels, strict=False):
        points = np.array(panel["points"])
        which = points[:, 2 if data["labelled"] else 3].astype(int)
        axis.scatter(points[:, 0], points[:, 1], s=6, c=wheel[which], linewidths=0, alpha=0.85)
        axis.set_title(panel["name"], fontsize=10)
        axis.set(xticks=[], yticks=[])
    if len(classes) <= 12:
        dots = [axes[0].scatter([], [], s=20, c=[wheel[c]], label=name) for c, name in enumerate(classes)]
        canvas.legend(handles=dots, loc="outside lower center", ncols=min(len(classes), 10), fontsize=8, frameon=False)


def _classes(canvas: Any, data: Mapping[str, Any]) -> None:
    """Accuracy by class, the lowest first; without labels how often each is predicted."""
    key, words = ("accuracy", "accuracy, %") if data["labelled"] else ("predicted", "images predicted")
    rows = sorted((row for row in data["rows"] if row[key] is not None), key=lambda row: row[key])
    canvas.set_size_inches(5.5, min(60.0, max(2.5, 0.2 * len(rows) + 1)))
    axis = canvas.subplots()
    axis.barh(range(len(rows)), [row[key] for row in rows], color=COLOURS[0])
    before = [(row["before"], y) for y, row in enumerate(rows) if row.get("before") is not None]
    if before:
        axis.plot(*zip(*before, strict=True), "|", color=INK, markersize=8, label="before adaptation")
        axis.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
    axis.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlabel(words)


def _images(canvas: Any, data: Mapping[str, Any]) -> None:
    """One axis a kind, the images pasted into it: an axis each would take many seconds to lay out."""
    across, kinds = 8, data["kinds"]
    downs = [math.ceil(len(kind["images"]) / across) for kind in kinds]
    canvas.set_size_inches(0.95 * across, 1.3 * sum(downs) + 0.4 * len(kinds) + 0.3)
    axes = canvas.subplots(len(kinds), 1, height_ratios=downs, squeeze=False)[:, 0]
    for axis, kind, down in zip(axes, kinds, downs, strict=True):
        for place, card in enumerate(kind["images"]):
            y, x = divmod(place, across)
            if card["src"]:
                axis.imshow(_decoded(card["src"]), extent=(x, x + 0.92, 1.4 * y + 0.92, 1.4 * y))
            under = f"{card['prediction']} {100 * card['confidence']:.0f} %"
            said = f"{under}\nis {card['label']}" if card["label"] else under
            axis.text(x + 0.46, 1.4 * y + 0.96, said, fontsize=6.5, ha="center", va="top")
        axis.set(xlim=(0, across), ylim=(1.4 * down, 0), aspect="equal")
        axis.set_axis_off()
        axis.set_title(kind["name"], fontsize=9, loc="left")


def _decoded(address: str) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))))


def _panels(canvas: Any, count: int, size: tuple[float, float]) -> list[Any]:
    across = min(3, count)
    down = math.ceil(count / across)
    canvas.set_size_inches(size[0] * across, size[1] * down + 0.3)
    axes = list(canvas.subplots(down, across, squeeze=False).flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    return axes


def _name_classes(axis: Any, classes: list[str]) -> None:
    if len(classes) <= NAMED:
        long = max(map(len, classes)) > 2
        axis.set_xticks(range(len(classes)), classes, rotation=90 if long else 0, fontsize=8)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _class_colour(number: int, count: int) -> tuple[float, ...]:
    from matplotlib.colors import hsv_to_rgb, to_rgb

    if count <= len(COLOURS):
        return tuple(to_rgb(COLOURS[number]))
    return tuple(hsv_to_rgb((number / count, (0.9, 0.65)[number % 2], (0.8, 0.65, 0.9)[number % 3])))


_DRAW: dict[Kind, Callable[[Any, Mapping[str, Any]], None]] = {
    "lines": _lines,
    "stacks": _stacks,
    "histogram": _histogram,
    "shares": _shares,
    "matrix": _matrix,
    "scatter": _scatter,
    "classes": _classes,
    "images": _images,
}
