"""The self-test's row of what spares the host: what cannot run is said, what differs is seen, what holds is kept.

A machine that calls itself a GPU stands for one: a capture is the function itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastget.selftest import host
from fastget.selftest.table import Machine, run_checks

CPU = torch.device("cpu")


class CalledGPU(Machine):
    """A CPU that says it is one."""

    @property
    def gpu(self) -> bool:
        return True


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    found: dict[str, bool] = {}
    monkeypatch.setattr(host, "keep", lambda results, device: found.update(results))
    monkeypatch.setattr(host, "STEPS", 16)
    monkeypatch.setattr(host, "captured", lambda step: step)
    return found


def test_rows_on_a_cpu() -> None:
    rows = list(run_checks(Machine(CPU), host.CHECKS))
    assert [(row.part, row.check) for row in rows] == [("host", "30 steps as CUDA graphs")]
    assert {(row.status, row.figures) for row in rows} == {("cannot run here", "needs a GPU")}


def test_what_holds_is_kept(kept: dict[str, bool]) -> None:
    rows = list(run_checks(CalledGPU(CPU), host.CHECKS))
    assert [(row.status, row.figures) for row in rows] == [
        ("pass", "bit-identical: train.graph=auto takes them from now on"),
    ]
    assert kept == {"graph": True}


def test_what_differs_is_noticed_and_kept_off(kept: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(step: Any) -> Any:
        first = step()
        return lambda: first  # a replay that does nothing

    monkeypatch.setattr(host, "captured", stale)
    rows = list(run_checks(CalledGPU(CPU), host.CHECKS))
    assert [row.status for row in rows] == ["fail"]
    assert "differ: losses by up to" in rows[0].figures
    assert kept == {"graph": False}
