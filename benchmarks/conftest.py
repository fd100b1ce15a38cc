"""Collects bench_*.py for `pytest benchmarks --benchmark-only`, and notes the machine beside the results."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from fastget.common.device import choose_device
from fastget.selftest.table import Machine


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """bench_*.py, unless the configuration collects them already."""
    patterns = parent.config.getini("python_files")
    if fnmatch(file_path.name, "bench_*.py") and not any(fnmatch(file_path.name, pattern) for pattern in patterns):
        return pytest.Module.from_parent(parent, path=file_path)
    return None


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """GPU, driver and versions; pytest-benchmark itself adds the commit."""
    machine_info.update(Machine(choose_device("auto")).describe())
