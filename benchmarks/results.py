"""What a benchmark found, as JSON beside the machine, the versions, the commit and the load it was found under.

    python -m benchmarks.bench_train --json found.json     every script of this folder takes it
    python -m benchmarks.report found.json                 tables, plots, and ratios to an older file

A row is one way of doing one case's work. The first row of a case is what the others are compared with.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from benchmarks.report import FORMAT, Row
from fastget.archive.statistics import markdown
from fastget.common.files import write_atomically
from fastget.runs.environment import environment

READS = {"item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "nonzero"}  # the host waits for each


class Spent(NamedTuple):
    """Of a block of work, from its beginning to its end, so that nothing works ahead unpaid: the whole process's CPU
    time, whichever thread spent it, and the clock's."""

    cpu: float
    wall: float


Found = TypeVar("Found")


def interleaved(blocks: dict[str, Callable[[], Found]], rounds: int) -> tuple[dict[str, Found], dict[str, Spent]]:
    """What each returned at last, and the least that it took, in rounds of all by turns after one to warm up: others
    use the machine too."""
    best = {name: Spent(float("inf"), float("inf")) for name in blocks}
    found: dict[str, Found] = {}
    for turn in range(rounds + 1):
        for name, block in blocks.items():
            cpu, wall = time.process_time(), time.perf_counter()
            found[name] = block()
            took = Spent(time.process_time() - cpu, time.perf_counter() - wall)
            if turn:
                best[name] = Spent(min(best[name].cpu, took.cpu), min(best[name].wall, took.wall))
    return found, best


def by_turns(
    makes: dict[str, Callable[[], Callable[[], Found]]], rounds: int
) -> tuple[dict[str, Found], dict[str, Spent], dict[str, float]]:
    """As `interleaved`, each block made and run in a process of its own, so that what one sets for its process is its
    own; and the MiB that each process held at the most."""
    context, ends, workers = multiprocessing.get_context("spawn"), {}, {}
    for name, make in makes.items():
        ends[name], other = context.Pipe()
        workers[name] = context.Process(target=_work, args=(other, make), daemon=True)
        workers[name].start()
        other.close()

    def ask(name: str, more: bool) -> Any:
        ends[name].send(more)
        return ends[name].recv()  # EOFError: it has said why

    best = {name: Spent(float("inf"), float("inf")) for name in makes}
    found: dict[str, Found] = {}
    for turn in range(rounds + 1):
        for name in makes:
            found[name], took = ask(name, True)
            if turn:
                best[name] = Spent(min(best[name].cpu, took.cpu), min(best[name].wall, took.wall))
    peaks = {name: ask(name, False) for name in makes}
    for worker in workers.values():
        worker.join()
    return found, best, peaks


def _work(end: Connection, make: Callable[[], Callable[[], object]]) -> None:
    """One block's process: it runs one when it is told to, and says what came of it and what that took."""
    with one_thread():
        block = make()
        while end.recv():
            cpu, wall = time.process_time(), time.perf_counter()
            found = block()
            end.send((found, Spent(time.process_time() - cpu, time.perf_counter() - wall)))
    end.send(peak_mb())


def compared(bench: str, case: str, found: dict[str, Spent], images: int) -> list[Row]:
    """The rows of a case whose first is the peer, by images."""
    peer = next(iter(found.values())).cpu
    return [
        Row(
            bench,
            case,
            name,
            {
                "CPU-ms an image": 1e3 * took.cpu / images,
                "against the peer": peer / took.cpu,
                "images/s": images / took.wall,
            },
        )
        for name, took in found.items()
    ]


class CountReads(TorchFunctionMode):
    """Counts what makes the host wait for the device, by name: on a GPU each of these is a sync."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += getattr(func, "__name__", "") in READS
        return func(*args, **(kwargs or {}))


def peak_mb() -> float:
    """The most memory that this process has held. getrusage() would tell of the process that started it too."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    held = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(held.split()[1]) / 1024


def write(rows: list[Row], file: Path) -> None:
    """With everything that the numbers depend on."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    record = {
        "format": FORMAT,
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": environment(device),
        "load": [round(value, 1) for value in os.getloadavg()],
        "rows": [row._asdict() for row in rows],
    }
    write_atomically(file, (json.dumps(record, indent=1) + "\n").encode())


def script(doc: str | None, make: Callable[[argparse.Namespace], list[Row]], **options: tuple[Any, str]) -> None:
    """The main of a benchmark: its own options (name=(default, help)), the rows printed, and written on request."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (default, help) in options.items():
        many: dict[str, Any] = {"nargs": "+"} if isinstance(default, tuple) else {}
        kind = type(default[0]) if isinstance(default, tuple) else type(default)
        parser.add_argument(
            f"--{name.replace('_', '-')}", default=default, type=kind, help=f"{help} ({default})", **many
        )
    parser.add_argument("--json", type=Path, help="also write the rows there")
    args = parser.parse_args()
    rows = make(args)
    for figures, group in itertools.groupby(rows, key=lambda row: tuple(row.figures)):
        print("\n".join(markdown(("case", "row", *figures), [_cells(row) for row in group])))
    if args.json:
        write(rows, args.json)


def _cells(row: Row) -> list[str]:
    return [row.case, row.row, *(f"{value:,.4g}" for value in row.figures.values())]


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes in one thread, so that CPU time is work and not waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
