"""The layout: `kernels/` is `fastget.kernels` and nothing else, dependencies point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fastget

ROOT = Path(__file__).resolve().parent.parent
# room -> the rooms of fastget that it may import; a room may always import itself
ROOMS: dict[str, set[str]] = {
    "common": set(),
    "reference": set(),
    "kernels": {"reference"},  # for its audit, which compares
    "methods": {"common", "reference", "kernels"},
    "config": {"common", "methods"},
    "data": {"common", "config"},
    "networks": {"common", "config"},
    "loading": {"common", "data"},
    "bases": {"common", "methods", "networks"},
    "evaluation": {"common", "data", "loading", "networks"},
    "runs": {"common", "config", "data", "loading", "evaluation"},
    "serving": {"common", "config", "data", "loading", "networks", "runs"},
    "training": {"common", "config", "data", "networks", "loading", "methods", "bases", "evaluation", "runs"},
}
ABOVE = {"studies", "selftest", "commands", "__init__", "__main__"}  # they may import all below them


def test_a_bare_import_of_kernels_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", "import kernels"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "imported as 'fastget.kernels'" in done.stderr


def test_version() -> None:
    assert f'VERSION = "{fastget.__version__}"' in (ROOT / "setup.py").read_text()
