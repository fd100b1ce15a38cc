"""The layout: `kernels/` is `fastget.kernels` and nothing else, dependencies point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fastget

ROOT = Path(__file__).resolve().parent.parent
LAYERS = {  # module -> what of fastget it may import
    "reference": set(),
    "get": {"reference", "kernels"},
    "network": {"config", "text"},
    "model": {"get", "network", "profiling"},
}


def imports(file: Path) -> set[str]:
    """The modules of fastget that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{a.name}" if node.module == "fastget" else node.module for a in node.names}
    return {name.split(".")[1] for name in found if name.startswith("fastget.")}


@pytest.mark.parametrize("module", LAYERS)
def test_dependencies_point_one_way(module: str) -> None:
    assert imports(ROOT / "fastget" / f"{module}.py") <= LAYERS[module]


def test_kernels_import_nothing_above_them() -> None:
    for file in (ROOT / "kernels").rglob("*.py"):
        if file.parent.name != "audit":  # which compares the kernels with the reference
            assert imports(file) <= {"kernels"}, file


def test_only_the_command_line_imports_the_command_line() -> None:
    for file in (ROOT / "fastget").glob("*.py"):
        if file.stem not in ("cli", "__main__"):
            assert "cli" not in imports(file), file


def test_a_bare_import_of_kernels_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", "import kernels"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "imported as 'fastget.kernels'" in done.stderr


def test_version() -> None:
    assert f'VERSION = "{fastget.__version__}"' in (ROOT / "setup.py").read_text()
