"""Set-up of all tests: what must be in the environment before torch and fastget are imported."""

import os
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported: its kernels run on CPU tensors
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="fastget-tests-")  # the digits are made here, once


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are written under the current folder."""
    monkeypatch.chdir(tmp_path)
