"""The rooms of fastget, what each may import, and the picture of what each does import.

python -m tests.rooms      # draws the picture in CONTRIBUTING.md anew
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from fastget import _HOMES

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- rooms: made by python -m tests.rooms -->\n```text\n", "```\n<!-- rooms end -->"

# room -> the rooms that it may import; a room may import itself
BELOW = ("common", "reference", "kernels", "methods", "bases", "config", "data", "networks", "loading", "evaluation")
ALLOWED: dict[str, set[str]] = {
    "common": set(),
    "reference": set(),
    "kernels": {"reference"},
    "methods": {"common", "reference", "kernels"},
    "audit": {"reference", "kernels", "methods"},  # kernels/audit, which runs steps of GeT
    "tuning": {"kernels", "methods", "audit"},  # kernels/tuning
    "networks": {"common", "config"},
    "bases": {"common", "methods", "networks", "loading"},
    "config": {"common", "methods", "bases"},  # of these two the registries alone: see LIGHT
    "data": {"common", "config"},
    "loading": {"common", "data"},
    "evaluation": {"common", "data", "loading", "networks"},
    "features": {"common", "config", "data", "loading", "networks"},
    "runs": {"common", "config", "data", "loading", "evaluation"},
    "serving": {"common", "config", "data", "loading", "networks", "evaluation", "runs"},
    "training": {*BELOW, "runs"},
    "archive": {"common", "config", "data", "methods", "bases", "evaluation", "runs"},
    "report": {"common", "config", "data", "evaluation", "runs"},
    "planning": {*BELOW, "training"},
    "studies": {*BELOW, "audit", "runs", "training", "archive", "planning"},
    "selftest": {*BELOW, "audit", "runs", "serving", "training"},
    "commands": set(),
}
INSIDE = ("audit", "tuning")  # rooms that lie in kernels/
ALLOWED["commands"] = set(ALLOWED) - {"commands"}
# what `import fastget` offers, lazily, and methods/formulas.py; `python -m fastget` is a command
PUBLIC = {"bases", "config", "methods", "training"}
# what the configuration may name of methods and base models: what imports no torch
LIGHT = ("fastget.methods", "fastget.bases", "fastget.methods.settings", "fastget.methods.gone.RULE",
         "fastget.methods.gone.why_gone")  # fmt: skip


def files() -> list[Path]:
    """Every module of the package, each once: `fastget/kernels` is a link to `kernels/`."""
    own = [file for file in (ROOT / "fastget").rglob("*.py") if "kernels" not in file.relative_to(ROOT).parts[:2]]
    return sorted([*own, *(ROOT / "kernels").rglob("*.py")])


def room_of(file: Path) -> str:
    """The room that a file lies in; an empty text for what is public: `__init__`, `__main__`, the list of formulas."""
    parts = file.relative_to(ROOT).parts
    if parts[-1] == "__main__.py" and len(parts) > 2:
        return "commands"  # wherever it lies
    if parts[0] == "kernels":
        return parts[1] if parts[1] in INSIDE else "kernels"
    if parts[1:] == ("methods", "formulas.py"):
        return ""
    if len(parts) == 2:
        return "reference" if parts[1] == "reference.py" else ""
    return parts[1]


def imports(source: str) -> set[str]:
    """The modules of fastget that a text imports, anywhere in it, in full."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import; say which room it is from"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert "fastget" not in found, "a bare `import fastget` hides which room is meant"
    found = {name for name in found if name.startswith("fastget.")}
    return {f"{_HOMES[name[8:]]}.{name[8:]}" if name[8:] in _HOMES else name for name in found}  # fastget.train, say


def rooms_in(modules: Iterable[str]) -> set[str]:
    """The rooms that full names lie in; what is no room is one of the package's own names."""
    parts = [name.split(".") for name in modules]
    inside = {name[2] for name in parts if name[1] == "kernels" and len(name) > 2 and name[2] in INSIDE}
    others = {name[1] for name in parts if name[1] != "kernels" or len(name) < 3 or name[2] not in INSIDE}
    return inside | others & set(ALLOWED)


def wrong_imports(room: str, source: str) -> set[str]:
    """The rooms that a text, as a part of this room, imports and must not."""
    allowed = ALLOWED[room] | {room} if room else PUBLIC | {"commands"}
    return rooms_in(imports(source)) - allowed


def graph() -> dict[str, set[str]]:
    """Room -> the rooms that it really imports, itself left out."""
    found: dict[str, set[str]] = {room: set() for room in ALLOWED}
    for file in files():
        if room := room_of(file):
            found[room] |= rooms_in(imports(file.read_text(encoding="utf-8"))) - {room}
    return found


def levels(edges: dict[str, set[str]]) -> list[list[str]]:
    """Rooms by the longest way down; the registries that the configuration reads are no way."""
    depth: dict[str, int] = {}

    def down(room: str) -> int:
        if room not in depth:
            below = edges[room] - ({"methods", "bases"} if room == "config" else set())
            depth[room] = 1 + max(map(down, below), default=-1)
        return depth[room]

    top = max(map(down, edges))
    return [[room for room in edges if depth[room] == level] for level in range(top, -1, -1)]


def picture() -> str:
    """The rooms from top to bottom, each level importing from those below it, and who imports whom."""
    edges = graph()
    rows = levels(edges)
    order = [room for row in rows for room in row]
    width = max(map(len, order))
    lines = ["   ".join(row).center(72).rstrip() for row in rows]
    drawn = [line for row in lines for line in (row, "|".center(72).rstrip())][:-1]
    table = [f"{room:<{width}}  {' '.join(other for other in order if other in edges[room]) or '-'}" for room in order]
    return "\n".join([*drawn, "", f"{'room':<{width}}  imports", *table]) + "\n"


def written() -> str:
    """The picture as CONTRIBUTING.md has it."""
    text = PICTURE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def main() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    PICTURE.write_text(text.replace(BEGIN + written() + END, BEGIN + picture() + END), encoding="utf-8")


if __name__ == "__main__":
    main()
