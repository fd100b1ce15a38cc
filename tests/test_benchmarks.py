"""No benchmark rots: each is imported, belongs to a kernel, and its rows run on what this machine has."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.common import Case
from fastget.kernels.launch import interpreting

ROOT = Path(__file__).parents[1]
STEMS = sorted(path.stem.removeprefix("bench_") for path in (ROOT / "benchmarks").glob("bench_*.py"))
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "kernels").rglob("*.py")}


@pytest.mark.parametrize("stem", STEMS)
def test_benchmark_imports(stem: str) -> None:
    module = importlib.import_module(f"benchmarks.bench_{stem}")
    assert module.__doc__
    if stem in SOURCES:
        assert callable(getattr(module, f"test_{stem}"))


@pytest.mark.skipif(not interpreting(), reason="the kernels run on the CPU only with TRITON_INTERPRET=1")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # lanes that a mask drops
@pytest.mark.parametrize("row", ["eager", "triton"])
@pytest.mark.parametrize("stem", sorted({*STEMS} & {*SOURCES, "step"}))
def test_rows_work(stem: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a row would time, done once and not timed: at a tiny shape the interpreter can do it."""
    module = importlib.import_module(f"benchmarks.bench_{stem}")
    done = []

    def once(benchmark: Any, stem: str, case: Case, prepare: Any, run: Any, compiled: Any = None) -> None:
        run(prepare(case))
        done.append(stem)

    monkeypatch.setattr(module, "measure", once)
    getattr(module, f"test_{stem}")(benchmark=None, case=Case((5, 3, 7), row))
    assert done == [stem]


def test_every_kernel_has_a_benchmark_of_its_stem() -> None:
    launched = {stem for stem, text in SOURCES.items() if re.search(r"^def \w+_kernel\(", text, re.MULTILINE)}
    assert launched, "no kernel found: do their names still end in _kernel?"
    assert launched - set(STEMS) == set(), "kernels without a benchmark"


def test_rows_run_and_the_interpreter_is_never_timed(tmp_path: Path) -> None:
    """As a user starts it, at the smallest shape."""
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "pytest", "benchmarks/bench_rebalance.py", "--benchmark-only", "-rs",
               "-k", "36x65x256 and not compile", "-p", "no:cacheprovider", f"--benchmark-json={out}"]  # fmt: skip
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=alone)
    assert done.returncode == 0, done.stdout + done.stderr
    text = out.read_text(encoding="utf-8")
    assert '"torch"' in text  # the machine's versions
    if not torch.cuda.is_available():
        assert "need a GPU: a time in the interpreter is not their speed" in done.stdout.replace("\n", " ")
        assert "-triton" not in text
