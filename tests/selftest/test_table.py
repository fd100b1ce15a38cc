"""The self-test: it passes here, it says what cannot run here, and it fails on kernels that are wrong."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastget import reference
from fastget.commands.main import main
from fastget.common.device import choose_device
from fastget.kernels.audit import traffic
from fastget.kernels.launch import interpreting
from fastget.selftest import kernels as selftest_kernels
from fastget.selftest import table as selftest
from fastget.selftest.table import Machine, Row, cannot, passed_if

CPU = Machine(torch.device("cpu"))
ROOT = Path(__file__).parents[2]


def _good(machine: Machine) -> Iterator[Row]:
    yield passed_if("part", "good", True, "fine")
    yield cannot("part", "far")


def _bad(machine: Machine) -> Iterator[Row]:
    yield passed_if("part", "bad", False, "off by 1")


def _raises_after_a_row(machine: Machine) -> Iterator[Row]:
    yield passed_if("part", "before", True, "fine")
    raise RuntimeError("first line\nthe [cause]")


def test_exit_code_and_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.selftest("cpu", chosen=[_good]) == 0
    out = capsys.readouterr().out
    assert "1 pass" in out
    assert "1 cannot run here" in out
    assert "needs a GPU" in out
    assert selftest.selftest("cpu", chosen=[_good, _bad]) == 1
    assert "1 fail" in capsys.readouterr().out
    assert selftest.selftest("cpu", chosen=[]) == 1  # nothing was shown


def test_an_error_is_a_failed_row_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.selftest("cpu", as_json=True, chosen=[_raises_after_a_row, _good]) == 1
    result = json.loads(capsys.readouterr().out)
    assert [(r["check"], r["status"]) for r in result["rows"]] == [
        ("before", "pass"),
        ("raises after a row", "fail"),
        ("good", "pass"),
        ("far", "cannot run here"),
    ]
    assert result["rows"][1]["figures"] == "RuntimeError: first line ... the [cause]"
    assert result["passed"] is False
    assert result["machine"]["torch"] == torch.__version__
    assert selftest.selftest("cpu", chosen=[_raises_after_a_row]) == 1
    assert "[cause]" in capsys.readouterr().out  # brackets in a message are not markup


@pytest.mark.parametrize("name", ["gpu0", "meta", "cuda" if not torch.cuda.is_available() else "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=f"'{name}'"):
        choose_device(name)
    assert main(["selftest", "--device", name]) == 2
    assert name in capsys.readouterr().err


def test_a_missing_package_is_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest_kernels, "find_spec", lambda name: None)
    (row,) = selftest.run_checks(CPU, [selftest_kernels.determinism])
    assert (row.status, row.check) == ("cannot run here", "determinism")
    assert "triton is not installed" in row.figures


def test_the_interpreter_cannot_stand_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(selftest, "choose_device", lambda name: torch.device("cuda"))
    with pytest.raises(ValueError, match="unset it"):
        selftest.selftest("cuda", chosen=[_good])


# --- the kernels' checks can fail ---------------------------------------------------------------


def _ops(**replaced: Any) -> SimpleNamespace:
    """The reference's functions, some of them wrong, in the kernels' place."""
    return SimpleNamespace(**{**vars(reference), **replaced})


def _stand_in(monkeypatch: pytest.MonkeyPatch, **replaced: Any) -> None:
    """GeT and the checks find these where they ask for the kernels."""
    ops = _ops(**replaced)

    def choose(backend: str, device: torch.device) -> Any:
        return reference if backend == "reference" else ops

    monkeypatch.setattr("fastget.methods.get.module.choose_backend", choose)
    monkeypatch.setattr(selftest_kernels, "choose_backend", choose)


def _rows(monkeypatch: pytest.MonkeyPatch, check: selftest.Check, **replaced: Any) -> list[Row]:
    _stand_in(monkeypatch, **replaced)
    monkeypatch.setattr(selftest_kernels, "SMALL", ((7, 3, 33), (36, 65, 64)))
    return list(check(CPU))


def _failed(rows: list[Row]) -> bool:
    return any(row.status == "fail" for row in rows)


def _posterior(*args: Any) -> torch.Tensor:
    return reference.posterior(*args) + 1e-4


def _rebalance(P: torch.Tensor, *args: Any) -> torch.Tensor:
    return reference.rebalance(P, *args) * (1 + 1e-3)


def _objective(*args: Any) -> reference.Objective:
    out = reference.objective(*args)
    return out._replace(loss=out.loss * (1 + 1e-4))


def _update(mu: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    reference.update_memory_(mu, *args, **kwargs)
    mu[0, 0] += 1e-4


def _update_by_the_paper(*args: Any, **kwargs: Any) -> None:
    reference.update_memory_(*args, **{**kwargs, "rule": reference.paper_prior})


def _expectation(*args: Any, **kwargs: Any) -> reference.Expectation:
    e = reference.expectation(*args, **kwargs)
    return e._replace(y_M=(e.y_M + 1) % e.S_g.shape[1])


WRONG = {"posterior": _posterior, "rebalance": _rebalance, "objective": _objective, "update_memory_": _update,
         "expectation": _expectation}  # fmt: skip


def test_accuracy_passes_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(monkeypatch, selftest_kernels.accuracy)
    assert len(rows) == 2 * 3 * 2
    assert sum(row.check.endswith(", paper") for row in rows) == 6
    assert not _failed(rows), rows


@pytest.mark.parametrize("name", WRONG)
def test_accuracy_fails_wrong_kernels(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rows = _rows(monkeypatch, selftest_kernels.accuracy, **{name: WRONG[name]})
    assert all(r.status == "fail" for r in rows if "float32" in r.check), rows


def test_accuracy_fails_a_rule_that_is_not_the_recipe_s(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(monkeypatch, selftest_kernels.accuracy, update_memory_=_update_by_the_paper)
    assert {r.status for r in rows if r.check.endswith(", default")} == {"fail"}
    assert {r.status for r in rows if r.check.endswith(", paper")} == {"pass"}


def test_sharpness_passes_the_kernels_and_fails_a_wrong_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _failed(list(selftest_kernels.sharpness(CPU)))
    assert _failed(_rows(monkeypatch, selftest_kernels.sharpness, posterior=_posterior))


def test_determinism_fails_on_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(*args: Any) -> reference.Objective:
        out = reference.objective(*args)
        return out._replace(loss=out.loss * (1 + 1e-6 * random.randint(1, 1000)))

    assert not _failed(_rows(monkeypatch, selftest_kernels.determinism))
    rows = _rows(monkeypatch, selftest_kernels.determinism, objective=noisy)
    assert _failed(rows)
    assert "differing" in rows[0].figures


@pytest.mark.skipif(not interpreting(), reason="the kernels run on the CPU only with TRITON_INTERPRET=1")
def test_compile_fails_on_what_cannot_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def untraceable(*args: Any) -> reference.Objective:
        out = reference.objective(*args)
        torch._dynamo.graph_break()
        return out

    machine_rows = list(selftest.run_checks(CPU, [selftest_kernels.torch_compile]))
    assert not _failed(machine_rows), machine_rows
    monkeypatch.setattr(reference, "objective", untraceable)
    _stand_in(monkeypatch)
    assert _failed(list(selftest.run_checks(CPU, [selftest_kernels.torch_compile])))


def test_launches_fail_where_none_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(monkeypatch, selftest_kernels.launches)  # the reference goes through no launcher
    assert [row.status for row in rows] == ["fail", "fail", "cannot run here"]


def test_bandwidth_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def limit(**properties: Any) -> float:
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**properties))
        return selftest_kernels.bandwidth_limit(torch.device("cuda"))

    assert limit(name="NVIDIA H100 80GB HBM3", memory_clock_rate=1, memory_bus_width=1) == 3.35e12
    assert limit(name="NVIDIA A100-SXM4-80GB") == 2.039e12
    assert limit(name="a card", memory_clock_rate=2_619_000, memory_bus_width=5120) == pytest.approx(3.352e12, rel=1e-3)
    assert limit(name="a card") == 0


@dataclass(frozen=True)
class Rehearsal(Machine):
    """A CPU that takes the paths of a GPU."""

    @property
    def gpu(self) -> bool:
        return True


class FakeGraph:
    """Work inside torch.cuda.graph() is done at once, and replay() has nothing left to do."""

    def replay(self) -> None:
        self.replayed = True


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    """The reference stands for the kernels, and torch.cuda for itself as far as the checks use it."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, fake in {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda s: nullcontext(),
        "graph": lambda g: nullcontext(),
        "CUDAGraph": FakeGraph,
        "synchronize": lambda: None,
        "get_device_properties": lambda device: SimpleNamespace(name="NVIDIA B200"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    _stand_in(monkeypatch)
    return Rehearsal(torch.device("cpu"))


def test_cuda_graph_rehearsed(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest_kernels, "GRAPH_SHAPE", (36, 65, 64))
    (row,) = selftest_kernels.cuda_graph(rehearsal)
    assert (row.status, row.figures) == ("pass", "replay bit-identical")
    calls = iter([0.0, 0.0, 1.0])  # the captured run is off

    def drifting(*args: Any) -> reference.Objective:
        out = reference.objective(*args)
        return out._replace(loss=out.loss + next(calls))

    _stand_in(monkeypatch, objective=drifting)
    (row,) = selftest_kernels.cuda_graph(rehearsal)
    assert (row.status, row.figures) == ("fail", "differing: ['loss']")


def test_bandwidth_rehearsed(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "SIZES", ((36, 65, 64),))
    times = [1e-6, 5e-6, 5e-6, 1e-6]

    def timed(run: Any) -> float:
        run()
        return times.pop(0)

    monkeypatch.setattr(selftest_kernels, "graph_seconds", timed)
    moved = traffic.fused_step(36, 65, 64, torch.bfloat16).bytes
    (row,) = selftest_kernels.bandwidth(rehearsal)
    assert row.status == "pass"
    assert row.figures == f"1 us, {moved / 1e-6 / 8e12:.0%} of 8,000 GB/s; eager 5 us"
    (row,) = selftest_kernels.bandwidth(rehearsal)
    assert row.status == "fail"  # slower than eager PyTorch


@pytest.mark.parametrize(("kernels_seen", "status"), [(6, "pass"), (7, "fail")])
def test_profiler_rehearsed(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch, kernels_seen: int, status: str
) -> None:
    names = ["aten::fill_kernel", *(f"k{i}" for i in range(kernels_seen))]
    events = [SimpleNamespace(name=name, device_type="DeviceType.CUDA") for name in names]
    events.append(SimpleNamespace(name="aten::add", device_type="DeviceType.CPU"))
    profile = nullcontext(SimpleNamespace(events=lambda: events))
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: profile)
    row = list(selftest_kernels.launches(rehearsal))[-1]
    assert row.status == status
    assert row.figures.startswith(str(kernels_seen))


def test_the_whole_of_it_on_this_cpu() -> None:
    """As a user starts it: without TRITON_INTERPRET, which it sets for itself."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "fastget", "selftest", "--device", "cpu", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    result = json.loads(done.stdout)
    failed = [r for r in result["rows"] if r["status"] == "fail"]
    assert not failed, failed
    assert done.returncode == 0
    assert result["passed"] is True
    reasons = {r["check"]: r["figures"] for r in result["rows"] if r["status"] == "cannot run here"}
    needs = ["CUDA graph", "launches, by the profiler", "bandwidth", "no wait for the device in a step"]
    needs += ["30 steps as CUDA graphs"]
    assert reasons == dict.fromkeys(needs, "needs a GPU") | {"50 mixed-precision steps": "this CPU runs float32"}
