"""The walk in CONTRIBUTING.md, and where to find what: every name is there, and no room is entered twice."""

import re
from importlib import import_module
from typing import Any

import pytest

from tests.rooms import ALLOWED, PICTURE

TEXT = PICTURE.read_text(encoding="utf-8")
WALK, WHERE = (TEXT.partition(f"## {head}\n")[2].partition("\n## ")[0] for head in ("The walk", "Where to find it"))
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in WALK.splitlines() if line.startswith("|")][2:]
NAME = re.compile(rf"`((?:{'|'.join(ALLOWED)})\.[\w.]+)`")


def found(name: str) -> Any:
    """What a name stands for: the longest part of it that is a module, and the rest in it."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            thing: Any = import_module(".".join(["fastget", *parts[:end]]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            thing = getattr(thing, part)
        return thing
    raise AssertionError(f"no module of {name}")


@pytest.mark.parametrize("name", sorted({*NAME.findall(WALK), *NAME.findall(WHERE)}))
def test_every_name_is_there(name: str) -> None:
    assert found(name) is not None


def test_no_room_is_entered_twice() -> None:
    rooms = [row[0] for row in ROWS]
    assert len(set(rooms)) == len(rooms) >= 10
    for room, _, way, _ in ROWS:
        assert {name.split(".")[0] for name in NAME.findall(way)} == {room}
