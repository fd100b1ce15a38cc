"""What a figure is: a kind, and plain data that both the page and matplotlib draw it from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["lines", "stacks", "matrix", "histogram", "shares", "scatter", "classes", "images"]


@dataclass(frozen=True)
class Figure:
    """`data` is empty where there is nothing to show, and `why` says the reason."""

    id: str
    title: str
    kind: Kind
    words: str = ""  # what one sees, in a sentence or two
    data: dict[str, Any] = field(default_factory=dict)
    why: str = ""

    def empty(self, why: str) -> Figure:
        return dataclasses.replace(self, why=why)

    def of(self, words: str, data: dict[str, Any], why: str = "") -> Figure:
        return dataclasses.replace(self, words=words, data=data, why=why)

    def to_dict(self) -> dict[str, Any]:
        """As the page's script reads it."""
        return dataclasses.asdict(self)


def series(name: str, colour: int, points: Sequence[Sequence[float]], dash: bool = False) -> dict[str, Any]:
    """A line: points of (x, y), or of (x, y, low, high) with a band."""
    return {"name": name, "colour": colour, "points": [[rounded(v) for v in point] for point in points], "dash": dash}


def choice(name: str, unit: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One of the things that a figure of lines can show; unit: % or nothing."""
    return {"name": name, "unit": unit, "series": list(lines)}


def rounded(value: float) -> float:
    """Five digits: more cannot be seen."""
    return float(f"{value:.5g}")
