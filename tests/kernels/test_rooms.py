"""The rooms of `kernels/`: the step, the equations made of its parts, the audit of both. Imports point one way."""

from __future__ import annotations

import pytest

from tests.rooms import ROOT, imports

KERNELS = ROOT / "kernels"
MAY_IMPORT = {  # room -> the rooms of fastget.kernels that it may import
    "step": {"step"},
    "equations": {"step", "equations"},
    "audit": {"step", "equations", "audit"},
    "tuning": {"step", "audit", "tuning"},
}


def room(module: str) -> str:
    """fastget.kernels.equations.labels -> "equations"; fastget.kernels.tile -> "step"."""
    part = module.split(".")[2] if module.count(".") > 1 else ""
    return part if part in MAY_IMPORT else "step"


@pytest.mark.parametrize("here", MAY_IMPORT)
def test_imports_point_one_way(here: str) -> None:
    files = [
        f
        for f in (KERNELS if here == "step" else KERNELS / here).glob("*.py")
        if f.parent.name != "kernels" or f.stem != "__init__"
    ]
    assert files
    for file in files:
        found = {name for name in imports(file.read_text(encoding="utf-8")) if name.startswith("fastget.kernels.")}
        wrong = {name for name in found if room(name) not in MAY_IMPORT[here]}
        assert not wrong, f"{file.name} imports {wrong}"
