"""What a target is made of as people see it: the file, the short table, the picture, whatever the classes' names."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fastget.evaluation.classes import Classes, Tally, count, estimate
from fastget.runs.sinks.classes import COLUMN, SHOWN, classes_figure, draw_classes, show_classes, write_classes

ODD = ("=1+1", "[bold]x[/]", "$a_b", '中, "文"', "\x1b[31mred\n", "bad\udc80", "plain")


def found_of(names: tuple[str, ...], labels: bool = True) -> Classes:
    """As many images of a class as its place, from 0."""
    numbers = list(range(len(names)))
    sums = [float(number) for number in numbers]
    truth = np.repeat(np.arange(len(names)), numbers) if labels else None
    return estimate(names, [Tally(1, numbers, sums, sums)], truth)


def said(found: Classes, rows: int = 10, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    show_classes(console, found, "what x is made of", rows)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_file(tmp_path: Path) -> None:
    write_classes(tmp_path / "classes.csv", found_of(ODD))
    with (tmp_path / "classes.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["class"] for row in rows] == ["'=1+1", *(name.replace("\udc80", "\\udc80") for name in ODD[1:])]
    assert list(rows[0]) == ["class", "share", "low", "high", "predicted", "probably_absent", "true_share"]
    assert [row["predicted"] for row in rows] == list("0123456")
    assert [row["probably_absent"] for row in rows] == ["true"] + ["false"] * 6
    for row in rows:
        assert float(row["low"]) <= float(row["share"]) == float(row["true_share"]) <= float(row["high"])
    assert float(rows[-1]["share"]) == pytest.approx(6 / 21, abs=1e-6)


def test_without_labels(tmp_path: Path) -> None:
    found = found_of(("a", "b"), labels=False)
    write_classes(tmp_path / "classes.csv", found)
    assert (tmp_path / "classes.csv").read_text().splitlines()[0] == "class,share,low,high,predicted,probably_absent"
    assert "labels" not in said(found)


def test_the_table_is_short_whatever_the_number_of_classes() -> None:
    text = said(found_of(tuple(f"c{i}" for i in range(345))))
    assert len(text.splitlines()) < 20
    assert "what x is made of, by the predictions for 59,340 images" in text
    assert "c344" in text
    assert "c334" not in text
    assert "335 other classes: 94.3 %" in text
    assert "probably absent, 18 of 345 classes: c0, c1, c2, c3, c4 and 13 more" in text
    assert "total variation to the labels: 0.0 %" in text
    assert len(said(found_of(("a", "b")), rows=0).splitlines()) == 1  # of many seeds: no table


def test_names_are_shown_as_they_are_and_do_nothing() -> None:
    text = said(found_of(ODD))
    assert "[bold]x[/]" in text
    assert "\x1b" not in text
    text.encode("utf-8")  # the half of a character is gone


def test_one_class_and_no_interval() -> None:
    assert "predicted for no image, 0 of 1 class: none" in said(count(("all",), np.array([3])))
    text = said(count(("a", "b"), np.array([3, 0])))
    assert "interval" not in text
    assert "predicted for no image, 1 of 2 classes: b" in text
    assert "probably absent" not in text  # that is a run's to say, of its own target


@pytest.mark.parametrize("names", [ODD, ("all", "none"), tuple(f"class {i}" for i in range(345))], ids=len)
def test_the_picture(names: tuple[str, ...], tmp_path: Path) -> None:
    draw_classes(tmp_path / "classes.png", found_of(names), "what $x is made of")
    with Image.open(tmp_path / "classes.png") as image:
        assert max(image.size) < 1600
    assert [f.name for f in tmp_path.iterdir()] == ["classes.png"]


def test_what_the_picture_shows() -> None:
    found = found_of(tuple(f"c{i}" for i in range(345)))
    axes = classes_figure(found, "x").axes
    names = [label.get_text() for axis in axes for label in axis.get_yticklabels()]
    assert names == [f"c{i}" for i in range(344, 344 - SHOWN, -1)]
    assert len(axes) == SHOWN // COLUMN
    (axis,) = classes_figure(found_of(("a", "b", "c")), "x").axes
    assert [bar.get_width() for bar in axis.patches] == pytest.approx([200 / 3, 100 / 3, 0])
    assert axis.lines[0].get_xdata() == pytest.approx([200 / 3, 100 / 3, 0])  # the labels
    colours = [label.get_color() for label in axis.get_yticklabels()]
    assert colours[0] == colours[1] != colours[2]  # absent
