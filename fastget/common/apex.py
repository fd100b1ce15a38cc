"""NVIDIA apex, if it is really there: the `apex` on PyPI is an unrelated web toolkit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

ADVICE = (
    "NVIDIA apex is built from its source: clone github.com/NVIDIA/apex and follow its README; "
    "`pip install apex` gives another project. Optional: torch's own fused SGD is the default"
)


def find_apex() -> Literal["nvidia", "unrelated"] | None:
    """Which `apex` is installed, told by its files, without importing it."""
    spec = importlib.util.find_spec("apex")
    if spec is None:
        return None
    folders = spec.submodule_search_locations or []
    return "nvidia" if any((Path(f) / "optimizers" / "fused_sgd.py").is_file() for f in folders) else "unrelated"
