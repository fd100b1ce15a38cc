"""Measuring this CPU: what is kept, and for whom. No time is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastget.planning import measure
from fastget.planning.model import Slower
from fastget.planning.reading import Stored
from tests.planning.support import config_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path))
    return tmp_path


def test_it_is_measured_and_remembered(cache: Path) -> None:
    config = config_of(data__name="digits", network__name="small", train__batch_size=4)
    assert measure.remembered(config) is None
    files = Stored("png", 32 * 32)
    found = measure.measure(config, 10, (files, files))
    assert min(found.training, found.looking, found.reading) > 0
    assert measure.remembered(config) == (found, "small at 28, 1 threads")
    other = config_of(network__name="resnet18")  # of this machine something is known
    assert measure.remembered(other) == (found, "small at 28, 1 threads")
    machine = measure.cpu_machine(config, found)
    assert (machine.slower, machine.threads) == (found, 1)


def test_another_machine_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of()
    measure._remember(config, Slower(2.0, 3.0, 4.0))
    assert measure.remembered(config) == (Slower(2.0, 3.0, 4.0), "resnet18 at 224, all threads")
    monkeypatch.setattr(measure, "_model", lambda: "another CPU")
    assert measure.remembered(config) is None


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_what_cannot_be_read_was_never_measured(cache: Path, content: str) -> None:
    (cache / measure.FILE).write_text(content)
    assert measure.remembered(config_of()) is None
