"""Proof on this machine that what was verified elsewhere holds here: `fastget selftest`, about a minute.

A check is a function of the Machine that yields Rows: pass, fail, or "cannot run here" with the reason. The modules
named in PARTS each hold a list CHECKS; a new part of fastget joins by adding its module. An error inside a check is
a failed row with its message, and the others go on.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fastget.common.device import choose_device

Status = Literal["pass", "fail", "cannot run here"]
STYLES = {"pass": "green", "fail": "bold red", "cannot run here": "yellow"}
NEEDS_GPU = "needs a GPU"

PARTS = (
    "fastget.selftest.kernels",
    "fastget.selftest.loaders",
    "fastget.selftest.engine",
    "fastget.selftest.host",
)  # modules with a list CHECKS


@dataclass(frozen=True)
class Row:
    """The result of one check."""

    part: str  # of fastget: "kernels"
    check: str
    status: Status
    figures: str  # what was measured, or why it cannot run
    seconds: float = 0.0


@dataclass(frozen=True)
class Machine:
    """Where the checks run."""

    device: torch.device

    @property
    def gpu(self) -> bool:
        return self.device.type == "cuda"

    def describe(self) -> dict[str, str]:
        """Everything that a report of a failure needs."""
        try:
            triton_version = str(importlib.import_module("triton").__version__)
        except ImportError as error:
            triton_version = f"missing ({error})"
        from fastget import __version__

        return {
            "fastget": __version__,
            "device": torch.cuda.get_device_name(self.device) if self.gpu else "CPU, Triton's interpreter",
            "torch": str(torch.__version__),
            "triton": triton_version,
            "cuda": str(torch.version.cuda or torch.version.hip or "none"),
            "driver": _driver() if self.gpu else "none",
            "python": platform.python_version(),
            "system": platform.platform(),
        }


Check = Callable[[Machine], Iterable[Row]]


class CannotRun(Exception):
    """Raised by a check for which this machine lacks something; its message says what."""


def passed_if(part: str, check: str, good: bool, figures: str) -> Row:
    """A row that passes if `good`."""
    return Row(part, check, "pass" if good else "fail", figures)


def cannot(part: str, check: str, reason: str = NEEDS_GPU) -> Row:
    """A row for what this machine cannot show."""
    return Row(part, check, "cannot run here", reason)


def _driver() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def checks() -> list[Check]:
    """Those of every part, in order."""
    return [check for part in PARTS for check in importlib.import_module(part).CHECKS]


def run_checks(machine: Machine, chosen: Sequence[Check]) -> Iterator[Row]:
    """Rows as they are done. An error ends its check, as a failed row, and no other."""
    for check in chosen:
        part = check.__module__.rpartition(".")[2]
        name = check.__name__.strip("_").replace("_", " ")
        start = time.perf_counter()
        try:
            for row in check(machine):
                now = time.perf_counter()
                yield Row(row.part, row.check, row.status, row.figures, round(now - start, 2))
                start = now
        except CannotRun as reason:
            yield cannot(part, name, str(reason))
        except Exception as error:  # noqa: BLE001  (whatever a check raises is its result)
            figures = f"{type(error).__name__}: {_first_and_last(str(error))}"
            yield Row(part, name, "fail", figures, round(time.perf_counter() - start, 2))


def _first_and_last(message: str) -> str:
    """The two lines of a long message that say most."""
    lines = [line.strip()[:200] for line in message.splitlines() if line.strip()] or [""]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"


def table(rows: Iterable[Row], machine: dict[str, str]) -> Table:
    """The rows, with the machine under them."""
    caption = ", ".join(f"{k} {v}" for k, v in machine.items())
    view = Table(title="fastget selftest", caption=escape(caption))
    for name in ("part", "check", "result", "figures"):
        view.add_column(name, overflow="fold")
    view.add_column("seconds", justify="right")
    for row in rows:
        style = STYLES[row.status]
        view.add_row(
            row.part, escape(row.check), f"[{style}]{row.status}[/]", escape(row.figures), f"{row.seconds:.1f}"
        )
    return view


def _interpreted(device: torch.device, as_json: bool) -> int | None:
    """On a CPU, without the interpreter: the exit code of a process that has it. None: go on here."""
    if device.type != "cpu" or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    command = [sys.executable, "-m", "fastget", "selftest", "--device", "cpu", *(["--json"] if as_json else [])]
    return subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}).returncode


def selftest(
    device: str = "auto",  # "auto", "cpu", "cuda", "cuda:1"
    as_json: bool = False,  # print JSON in place of the table
    chosen: Sequence[Check] | None = None,  # None: those of every part
) -> int:
    """Run the checks and print their rows. Returns 0, or 1 if any failed."""
    machine = Machine(choose_device(device))
    if machine.gpu and os.environ.get("TRITON_INTERPRET") == "1":
        raise ValueError("TRITON_INTERPRET=1 is set, so the GPU would not be tested: unset it, or use device='cpu'")
    if chosen is None and (code := _interpreted(machine.device, as_json)) is not None:
        return code
    console = Console(width=None if sys.stdout.isatty() else 120)
    described = machine.describe()
    rows: list[Row] = []
    on_device = torch.cuda.device(machine.device) if machine.gpu else nullcontext()
    with on_device, warnings.catch_warnings(), Console(stderr=True).status("checking") as status:
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.runtime\.interpreter")  # log of 0
        for row in run_checks(machine, checks() if chosen is None else chosen):
            rows.append(row)
            status.update(f"checked: {escape(row.check)}")
    failed = sum(row.status == "fail" for row in rows)
    if as_json:
        result: dict[str, Any] = {"passed": not failed, "machine": described, "rows": [asdict(row) for row in rows]}
        print(json.dumps(result, indent=2))
    else:
        console.print(table(rows, described))
        count = {status: sum(row.status == status for row in rows) for status in STYLES}
        console.print(", ".join(f"[{STYLES[status]}]{n} {status}[/]" for status, n in count.items() if n))
    return 1 if failed or not rows else 0
