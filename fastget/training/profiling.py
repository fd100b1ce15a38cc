"""Where a step's time goes: named phases over the whole run, and a trace of a few steps."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fastget.common.text import escaped
from fastget.training.cost import OWN, Meter, bytes_of

PHASES = (
    "data", "forward", "base model", "method", "backward", "optimizer", "memory", "second look", "own step",
    "evaluation",
)  # fmt: skip
WAIT, STEPS = 3, 10  # steps before the trace begins, and in it


class Profile(Meter):
    """Seconds by phase over the whole run, a phase within another counted once, and a Chrome trace of a few steps."""

    def __init__(self, trace: Path, device: torch.device, console: Console | None = None) -> None:
        super().__init__(device)
        self.trace = trace
        self.console = console or Console(stderr=True)  # for what torch's tracer says
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.all_steps = 0
        self.all_passes: Counter[str] = Counter()
        self.all_of_method = 0.0
        self._open: list[float] = []  # of each phase that is open, the seconds of those within it
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if device.type == "cuda":
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        self._tracer = torch.profiler.profile(activities=kinds)
        self._tracing = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with torch.profiler.record_function(f"fastget: {name}"):
            start = self._now()
            self._open.append(0.0)
            whole = name in OWN and not self._inside
            self._inside = self._inside or whole
            yield
            took = self._now() - start
            within = self._open.pop()
            if self._open:
                self._open[-1] += took
            self.seconds[name] += took - within
            if whole:
                self._inside = False
                self.seconds_of_method += took
                self.all_of_method += took

    def images(self, what: str, rows: int, trained: bool) -> None:
        before = self.passes.get(what, 0)
        super().images(what, rows, trained)
        self.all_passes[what] += self.passes[what] - before

    def step(self) -> None:
        """After each step."""
        self.all_steps += 1
        if self.all_steps == WAIT:
            with self._heard():
                self._tracer.start()
            self._tracing = True
        elif self.all_steps == WAIT + STEPS:
            self._stop_tracing()

    def _stop_tracing(self) -> None:
        if self._tracing:
            with self._heard():
                self._tracer.stop()
                self._tracer.export_chrome_trace(str(self.trace))
            self._tracing = False

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """What the tracer's own library writes to standard error goes through the console, above its bar, which it
        would tear. Its marks of start and end are left out, and on a CPU that it finds no GPU."""
        sys.stderr.flush()
        kept = os.dup(2)
        with tempfile.TemporaryFile() as said:
            os.dup2(said.fileno(), 2)
            try:
                yield
            finally:
                sys.stderr.flush()
                os.dup2(kept, 2)
                os.close(kept)
                said.seek(0)
                lines = said.read().decode("utf-8", "replace").splitlines()
        noise = ("USDT:",) if self.device.type == "cuda" else ("USDT:", "gpuGetDeviceCount")
        for line in lines:
            if not any(word in line for word in noise):
                self.console.print(escaped(line), highlight=False, markup=False, soft_wrap=True)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # or the time of one phase is charged to the next
        return time.perf_counter()

    def report(self, console: Console, method: nn.Module, ranks: int = 1) -> None:
        """The tables, largest first, and what the method keeps."""
        self._stop_tracing()
        steps = max(1, self.all_steps)
        console.print(
            _table(
                f"where the time of {self.all_steps} steps went",
                ("phase", "ms a step"),
                {name: 1000 * seconds / steps for name, seconds in self.seconds.items()},
                2,
            )
        )
        console.print(
            _table(
                "what went through the network; an image that is learned from counts as three",
                ("what", "image passes a step"),
                {what: ranks * count / steps for what, count in self.all_passes.items()},
                1,
            )
        )
        own = f"{1000 * self.all_of_method / steps:.2f} ms a step"
        kept = f"{bytes_of(method) / 2**20:,.1f} MiB of state"
        console.print(f"of it the method's own ({', '.join(OWN)}): {own}; {kept}", highlight=False, soft_wrap=True)
        if self.trace.exists():
            text = f"trace: {self.trace} (open it in chrome://tracing or ui.perfetto.dev)"
            console.print(text, highlight=False, markup=False, soft_wrap=True)


def _table(title: str, columns: tuple[str, str], rows: Mapping[str, float], digits: int) -> Table:
    """Each row with its share of the whole, the largest first."""
    total = sum(rows.values()) or 1.0
    table = Table(title=title, title_justify="left")
    for column in (*columns, "share"):
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for name, value in sorted(rows.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{value:.{digits}f}", f"{100 * value / total:.1f} %")
    return table
