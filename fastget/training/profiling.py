"""Where a step's time goes: named phases over the whole run, and a trace of a few steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from fastget.common.timing import Timer

PHASES = ("data", "forward", "method", "backward", "optimizer", "memory", "evaluation")
WAIT, STEPS = 3, 10  # steps before the trace begins, and in it


class Profile(Timer):
    """Seconds by phase over the whole run, and a Chrome trace of a few steps."""

    def __init__(self, trace: Path, device: torch.device) -> None:
        self.trace, self.device = trace, device
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps = 0
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if device.type == "cuda":
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        self._tracer = torch.profiler.profile(activities=kinds)
        self._tracing = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with torch.profiler.record_function(f"fastget: {name}"):
            start = self._now()
            yield
            self.seconds[name] += self._now() - start

    def step(self) -> None:
        """After each step."""
        self.steps += 1
        if self.steps == WAIT:
            self._tracer.start()
            self._tracing = True
        elif self.steps == WAIT + STEPS:
            self._stop_tracing()

    def _stop_tracing(self) -> None:
        if self._tracing:
            self._tracer.stop()
            self._tracer.export_chrome_trace(str(self.trace))
            self._tracing = False

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # or the time of one phase is charged to the next
        return time.perf_counter()

    def report(self, console: Console) -> None:
        """The table, largest first."""
        self._stop_tracing()
        total = sum(self.seconds.values()) or 1.0
        table = Table(title=f"where the time of {self.steps} steps went", title_justify="left")
        for column in ("phase", "ms a step", "share"):
            table.add_column(column, justify="left" if column == "phase" else "right")
        for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1]):
            table.add_row(name, f"{1000 * seconds / max(1, self.steps):.2f}", f"{100 * seconds / total:.1f} %")
        console.print(table)
        if self.trace.exists():
            text = f"trace: {self.trace} (open it in chrome://tracing or ui.perfetto.dev)"
            console.print(text, highlight=False, markup=False, soft_wrap=True)
