"""What `fastget selftest` says of the engine: mixed precision, waits for the device, resuming, memory, throughput.

Every check trains on the embedded digits (synthetic images where speed is measured); a CPU does all but what is about
a GPU.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fastget.common.precision import choose_precision
from fastget.config import make_config
from fastget.data.domains import load_domains
from fastget.runs.checkpoint import load_checkpoint, save_checkpoint
from fastget.selftest.table import Check, Machine, Row, cannot, passed_if
from fastget.training.engine import Engine
from fastget.training.resume import load_state, state_of

PART = "engine"
STEPS = 50
SMALL = {"train.max_steps": STEPS, "train.warmup_steps": 10, "train.batch_size": 32, "optim.lr": 0.02}


def engine(machine: Machine, **settings: Any) -> Engine:
    """An engine on digits, at its start."""
    config = make_config(
        {**SMALL, "train.precision": "float32", **{k.replace("__", "."): v for k, v in settings.items()}}
    )
    return Engine(config, 0, load_domains(config.data), machine.device)


def steps(e: Engine, count: int) -> list[float]:
    """Train so many steps; the loss of each."""
    losses = []
    batches = e.steps()
    for batch in itertools.islice(batches, count):
        e.train_step(batch)
        losses.append(e.read_means()["loss"])
    batches.close()
    return losses


def mixed_precision(machine: Machine) -> Iterator[Row]:
    """The same steps in the device's own precision and in float32: the losses stay close."""
    dtype = choose_precision("auto", machine.device)
    name = f"{STEPS} mixed-precision steps"
    if dtype == torch.float32:
        yield cannot(PART, name, "this CPU runs float32")
        return
    plain = steps(engine(machine), STEPS)
    mixed = steps(engine(machine, train__precision="auto"), STEPS)
    apart = max(abs(a - b) / a for a, b in zip(plain[:20], mixed[:20], strict=True))
    figures = f"{dtype}: losses within {apart:.2%} over 20 steps, last {mixed[-1]:.3f} against {plain[-1]:.3f}"
    yield passed_if(PART, name, apart < 0.05, figures)


def no_waits(machine: Machine) -> Iterator[Row]:
    """torch's own detector raises if a step waits for the device."""
    name = "no wait for the device in a step"
    if not machine.gpu:
        yield cannot(PART, name)
        return
    e = engine(machine, train__precision="auto")
    batches = e.steps()
    for batch in itertools.islice(batches, 15):  # past the start of the memory
        e.train_step(batch)
    batch = next(batches)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            e.train_step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        batches.close()
    yield passed_if(PART, name, True, "3 steps, none waited")


def resume(machine: Machine) -> Iterator[Row]:
    """Saved in the middle, read back into a new engine, run to the end: the same bits."""
    torch.use_deterministic_algorithms(machine.gpu, warn_only=True)
    try:
        whole, first = engine(machine), engine(machine)
        steps(whole, STEPS)
        steps(first, STEPS // 2)
        with tempfile.TemporaryDirectory(prefix="fastget-selftest-") as folder:
            file = Path(folder) / "x.pt"
            save_checkpoint(file, state_of(first))
            second = engine(machine)
            load_state(second, load_checkpoint(file))
        steps(second, STEPS - STEPS // 2)
    finally:
        torch.use_deterministic_algorithms(False)
    a, b = whole.model.state_dict(), second.model.state_dict()
    differing = [name for name in a if not torch.equal(a[name], b[name])]
    figures = f"{len(a)} tensors equal after {STEPS} steps" if not differing else f"differ: {', '.join(differing[:3])}"
    yield passed_if(PART, "resume to the bit", not differing, figures)


def throughput(machine: Machine) -> Iterator[Row]:
    """Images per second from files beside synthetic images, and the peak memory. For the reader: no bound."""
    figures = []
    for loader in ("auto", "synthetic"):
        e = engine(machine, data__loader=loader, train__precision="auto")
        steps(e, 15)
        start, before = time.perf_counter(), e.steps_done
        batches = e.steps()
        for batch in itertools.islice(batches, 20):
            e.train_step(batch)
        e.read_means()
        batches.close()
        rate = 2 * 32 * (e.steps_done - before) / (time.perf_counter() - start)
        figures.append(f"{'digits' if loader == 'auto' else loader} {rate:,.0f} img/s")
    if machine.gpu:
        figures.append(f"peak memory {torch.cuda.max_memory_allocated(machine.device) / 2**20:,.0f} MiB")
    yield passed_if(PART, "throughput", True, ", ".join(figures))


CHECKS: list[Check] = [mixed_precision, no_waits, resume, throughput]
