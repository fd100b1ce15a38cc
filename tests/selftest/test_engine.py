"""The self-test's rows of the engine: they pass here, and fail on an engine that resumes wrongly."""

from typing import Any

import pytest
import torch

from fastget.methods.get.method import GetMethod
from fastget.selftest import engine as selftest_engine
from fastget.selftest.table import Machine, run_checks
from fastget.training.engine import Engine
from fastget.training.resume import load_state

CPU = Machine(torch.device("cpu"))


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest_engine, "STEPS", 16)
    monkeypatch.setitem(selftest_engine.SMALL, "train.max_steps", 60)


def test_rows_on_a_cpu() -> None:
    rows = {row.check: row for row in run_checks(CPU, selftest_engine.CHECKS)}
    assert rows["resume to the bit"].status == "pass"
    assert "img/s" in rows["throughput"].figures
    assert rows["no wait for the device in a step"].status == "cannot run here"
    assert rows["16 mixed-precision steps"].figures == "this CPU runs float32"


def test_a_lost_memory_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(engine: Engine, state: dict[str, Any]) -> None:
        load_state(engine, state)
        assert isinstance(engine.method, GetMethod)
        engine.method.get.mu.add_(0.01)

    monkeypatch.setattr(selftest_engine, "load_state", forgetful)
    monkeypatch.setitem(selftest_engine.SMALL, "train.warmup_steps", 2)
    (row,) = run_checks(CPU, [selftest_engine.resume])
    assert row.status == "fail"
    assert row.figures.startswith("differ: ")
