"""The rooms of `kernels/`: the step, the equations made of its parts, the audit of both. Imports point one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"
MAY_IMPORT = {  # room -> the rooms of fastget.kernels that it may import
    "step": {"step"},
    "equations": {"step", "equations"},
    "audit": {"step", "equations", "audit"},
}


def room(module: str) -> str:
    """fastget.kernels.equations.labels -> "equations"; fastget.kernels.tile -> "step"."""
    part = module.split(".")[2] if module.count(".") > 1 else ""
    return part if part in MAY_IMPORT else "step"


def imports(file: Path) -> set[str]:
    """The modules of fastget.kernels that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("fastget.kernels.")}


@pytest.mark.parametrize("here", MAY_IMPORT)
def test_imports_point_one_way(here: str) -> None:
    files = [
        f
        for f in (KERNELS if here == "step" else KERNELS / here).glob("*.py")
        if f.parent.name != "kernels" or f.stem != "__init__"
    ]
    assert files
    for file in files:
        wrong = {name for name in imports(file) if room(name) not in MAY_IMPORT[here]}
        assert not wrong, f"{file.name} imports {wrong}"
