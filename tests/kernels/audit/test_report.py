"""The report and the counting behind it: launches and bytes against eager PyTorch and the minimum."""

from __future__ import annotations

import argparse
import csv
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from fastget.kernels.audit import report, traffic
from fastget.kernels.audit.catalogue import Variant, variants
from fastget.kernels.audit.compile import Resources, pairs
from fastget.kernels.audit.step import StepInputs, step
from fastget.kernels.launch import interpreting, record
from tests.kernels.checker import check_addresses

ROOT = Path(__file__).parents[3]
GOOD = Resources(
    name="logits_kernel", variant="logits_kernel[float32]", dtype="float32", config="BLOCK_B=16", arch="sm_90",
    registers=90, shared=20_000, shared_limit=232_448, occupancy=0.31, mma="HMMA.1688.F32.TF32", dots="tf32/f32",
)  # fmt: skip


# --- the step's traffic -------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["default", "paper"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", traffic.SIZES)
def test_a_step_is_six_launches_and_near_the_minimum(
    size: tuple[int, int, int], dtype: torch.dtype, recipe: str
) -> None:
    fused, least = traffic.fused_step(*size, dtype, recipe), traffic.minimum_bytes(*size, dtype, recipe)
    assert fused.launches == 6
    assert fused.others == ()
    assert least <= fused.bytes <= 1.7 * least  # the slopes are written and read
    eager = traffic.eager_step(*size, dtype, recipe)
    assert eager.launches >= 80
    assert eager.bytes > 5 * fused.bytes


@pytest.mark.skipif(not interpreting(), reason="the checker needs TRITON_INTERPRET=1")
@pytest.mark.parametrize("recipe", ["default", "paper"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_launch_touches_what_it_declares(dtype: torch.dtype, recipe: str) -> None:
    """The bytes are counted from what launches declare: the address checker sees what they touch."""
    x = StepInputs.make(19, 37, 23, dtype, recipe, make=lambda *size, dtype: torch.rand(*size).to(dtype))
    assert x.get.prior
    with check_addresses() as seen, record() as launches:
        step(x)
    assert len(seen.launches) == len(launches) == 6
    for touched, launch in zip(seen.launches, launches, strict=True):
        places = {name: _place(arg) for name, arg in zip(launch.kernel.arg_names, launch.args, strict=False)}
        assert {places[name] for name in touched.reads} == {_place(t) for t in launch.reads}, launch.name
        assert {places[name] for name in touched.writes} == {_place(t) for t in launch.writes}, launch.name


def _place(tensor: Any) -> Any:
    return (tensor.data_ptr(), tensor.numel()) if isinstance(tensor, torch.Tensor) else None


def test_operators_are_counted_with_their_bytes() -> None:
    x, y = torch.ones(4, 8), torch.empty(8)
    with traffic.CountOperators() as seen:
        z = x.T.reshape(8, 4)[0] + 1  # a view and an add of 4 elements
        y.copy_(x[0])
        torch.empty(3)
        x.sum().expand(5).neg()  # an expanded axis is one element wide to read
    assert seen.names == ["add", "copy_", "sum", "neg"]
    assert seen.transfers == [(4 + 4) * 4, (8 + 8) * 4, (32 + 1) * 4, (1 + 5) * 4]
    assert z.shape == (4,)


def test_minimum_by_hand() -> None:
    """B = C = D = 1, float32: each tensor is one element, labels and y_M eight bytes, log pi and two powers twelve."""
    expectation = 4 + 3 * 4 + 4 + 8 + 2 * 4 + 8 + 3 * 4 + 8 + (4 + 4)
    loss = 2 * 4 + 8 + 2 * 4 + 8 + 20
    backward = 3 * 4 + 2 * 4 + 8 + 2 * 4 + 3 * 4
    memory = (4 + 4 + 4 + 16) + (4 + 4 + 4 + 8) + (4 + 4 + 16) + (4 + 8)
    assert traffic.minimum_bytes(1, 1, 1) == expectation + loss + backward + memory
    assert traffic.minimum_bytes(1, 1, 1, recipe="paper") == expectation - 8 + loss + backward + memory


def test_time_is_the_larger_of_latency_and_bytes_per_launch() -> None:
    gpu = traffic.GPU("card", bandwidth=1e9)
    assert gpu.seconds((1, 1_000_000), latency=1e-5) == pytest.approx(1e-5 + 1e-3)


def test_every_tenth_compilation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def inspected(chosen: list[Variant], archs: list[str], jobs: int | None) -> Iterator[Resources]:
        asked.extend(variant.fast for variant in chosen)
        for variant, arch in reversed(pairs(chosen, archs)):
            yield replace(GOOD, variant=variant.name, arch=arch)

    monkeypatch.setattr(report, "inspect_all", inspected)
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    rows = report.collect(["sm_90"], False, 1, console)
    assert console.export_text().count(f" of {len(rows)}\n") == 10  # a log without a terminal is not silent
    assert not all(asked)
    every = [variant.name for variant, _ in pairs(list(variants()), ["sm_90"])]
    assert sorted(row.variant for row in rows) == sorted(every)
    asked.clear()
    assert 0 < len(report.collect(["sm_90"], True, 1, console)) < len(rows)
    assert all(asked)


# --- the program --------------------------------------------------------------------------------


def _run(monkeypatch: pytest.MonkeyPatch, rows: list[Resources], *argv: str) -> tuple[int, str]:
    monkeypatch.setattr(report, "interpreting", lambda: False)
    monkeypatch.setattr(report, "collect", lambda *args: rows)
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    return report.run(parser.parse_args(argv), console), console.export_text()


BROKEN: list[dict[str, Any]] = [
    {"stack": 8, "spills": 2},
    {"arch": "sm_80", "stack": 8},
    {"shared": 300_000},
    {"name": "memory_kernel", "atomics": "ATOMG.E.ADD.STRONG.GPU"},
    {"atomics": "REDG.E.ADD.F32.FTZ.RN.STRONG.GPU"},
    {"mma": ""},
    {"fused_sums": 1},
    {"error": "CompilationError: no"},
]


@pytest.mark.parametrize("change", BROKEN, ids=lambda change: next(iter(change)))
def test_a_broken_claim_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    code, text = _run(monkeypatch, [GOOD, replace(GOOD, **change)], "--sizes")
    assert code == 1
    assert "1 broken claims" in text
    assert "broken logits_kernel[float32] on" in text


def test_what_is_no_claim_does_not_break_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [GOOD, replace(GOOD, arch="sm_75", stack=64, mma="")]
    code, text = _run(monkeypatch, rows, "--sizes")
    assert code == 0
    assert "64 B" in text
    assert _run(monkeypatch, [], "--sizes")[0] == 1  # nothing compiled, nothing shown


def test_tables_and_csv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.csv"
    options = ["--csv", str(path), "--sizes", "36,65,256", "--full", "--recipe", "paper"]
    code, text = _run(monkeypatch, [GOOD], *options)
    assert code == 0
    assert "BLOCK_B=16" in text
    assert "20,000 / 232,448" in text
    assert "-> 6" in text
    with path.open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["arch"], row["registers"], row["broken_claims"]) == ("sm_90", "90", "")
    with (tmp_path / "new" / "out_traffic.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["B"], row["recipe"], row["launches_fused"]) == ("36", "paper", "6")


@pytest.mark.parametrize("text", ["36,65", "a,b,c", "0,65,256", "36,1,256"])
def test_a_wrong_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        report.parse_size(text)


def test_under_the_interpreter_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(report, "interpreting", lambda: True)
    assert report.main(["--sizes"]) == 2
    assert "TRITON_INTERPRET is set" in capsys.readouterr().out


def test_it_starts_as_a_program_without_a_warning() -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", "-m", "fastget.kernels.audit.report", "--help"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--arch" in done.stdout


def test_it_speaks_before_it_has_compiled_them_all(tmp_path: Path) -> None:
    """Which takes minutes; a word is due in one."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-u", "-m", "fastget.kernels.audit.report", "--arch", "sm_90"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 60)[0], "not a word in a minute"
        assert b"compiling" in os.read(process.stdout.fileno(), 10_000)
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
