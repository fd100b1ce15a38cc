"""How a step grows: with ranks (1 and 2, gloo), and with B, C, D and N.

    python -m benchmarks.bench_scaling

Ranks: whole steps of a run on digits, the global batch the same; collectives are counted and timed where torch calls
them (their time holds the wait for the other rank), gradients among them. Sizes: the term, its backward pass and the
memory of GeT over B, C and D, and of ATDOC-NA, whose memory holds every target image, over N; each size doubled alone.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.report import Row
from benchmarks.results import interleaved, one_thread, script
from fastget import methods
from fastget.common.ranks import joined
from fastget.config import make_config
from fastget.data.domains import load_domains
from fastget.methods.base import Seen, Task
from fastget.training.engine import Engine

BASE = {"B": 36, "C": 64, "D": 256, "N": 4096}
CALLS = ("all_reduce", "all_gather", "broadcast", "all_gather_into_tensor")


class Collectives:
    """Time and bytes of every collective that this process asks for; DistributedDataParallel's by its hook."""

    def __init__(self) -> None:
        self.seconds, self.bytes, self.calls = 0.0, 0, 0

    def __enter__(self) -> Collectives:
        self._own = {name: getattr(dist, name) for name in CALLS}
        for name, call in self._own.items():
            setattr(dist, name, self._counted(call))
        return self

    def __exit__(self, *what: object) -> None:
        for name, call in self._own.items():
            setattr(dist, name, call)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            done = call(*args, **kwargs)
            self._add(args[1] if isinstance(args[0], list) else args[0], time.perf_counter() - start)
            return done

        return counted

    def _add(self, value: torch.Tensor, seconds: float) -> None:
        self.seconds += seconds
        self.bytes += value.numel() * value.element_size()
        self.calls += 1

    def average(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Gradients, averaged as without it; not overlapped with the backward pass, so that they can be timed."""
        start = time.perf_counter()
        self._own["all_reduce"](bucket.buffer().div_(dist.get_world_size()))
        self._add(bucket.buffer(), time.perf_counter() - start)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done


def _rank(rank: int, world: int, port: int, steps: int, out: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    given = {"network.name": "small", "network.weights": "none", "data.resize": 32, "data.crop": 32, "data.workers": 1}
    config = make_config({**given, "train.warmup_steps": 0, "train.max_steps": 1000, "train.device": "cpu"})
    with joined(torch.device("cpu")) as (ranks, device):
        engine = Engine(config, 0, load_domains(config.data), device, ranks)
        with Collectives() as collectives:
            if world > 1:
                hook = lambda state, bucket: collectives.average(bucket)  # noqa: E731  # torch reads its annotations
                cast(DistributedDataParallel, engine.step_model).register_comm_hook(None, hook)
            batches = engine.steps()
            engine.train_step(next(batches))
            collectives.seconds, collectives.bytes, collectives.calls = 0.0, 0, 0
            cpu, start = time.process_time(), time.perf_counter()
            for _ in range(steps):
                engine.train_step(next(batches))
            wall = time.perf_counter() - start
            batches.close()
        if rank == 0:
            found = {
                "CPU-ms a step and rank": 1e3 * (time.process_time() - cpu) / steps,
                "ms a step": 1e3 * wall / steps,
                "share in collectives": collectives.seconds / wall,
                "collectives a step": collectives.calls / steps,
                "kB a step": collectives.bytes / steps / 1e3,
            }
            Path(out).write_text(json.dumps(found), encoding="utf-8")


def by_ranks(steps: int) -> list[Row]:
    rows = []
    load_domains(make_config({}).data)  # the digits are made before two ranks want them
    for world in (1, 2):
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("127.0.0.1", 0))
            port, out = free.getsockname()[1], f"{folder}/found.json"
            free.close()
            spawn(_rank, args=(world, port, steps, out), nprocs=world)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            rows.append(Row("scaling", "digits, 36 + 36", f"{world} ranks", json.loads(Path(out).read_text("utf-8"))))
    return rows


@dataclass(frozen=True)
class Start:
    """What a method starts from: `fastget.methods.base.Whole`, made up."""

    features: list[torch.Tensor]
    logits: torch.Tensor
    index: torch.Tensor
    classifier: nn.Linear
    source_means: torch.Tensor


def one_step(name: str, B: int, C: int, D: int, N: int) -> Callable[[], object]:
    """Term, backward and memory of a method, on made-up features."""
    torch.manual_seed(0)
    config = make_config({"method.name": name})
    method = methods.method_of(name)(config.own, Task(C, D, N))
    classifier = nn.Linear(D, C)
    whole = torch.randn(2 * C, D)  # stands for the target where a method's memory starts from it
    method.start(Start([whole], classifier(whole).detach(), torch.arange(len(whole)), classifier, torch.randn(C, D)))
    features = torch.randn(B, D, requires_grad=True)
    index = torch.randperm(N)[:B]
    seen = Seen(features, classifier(features.detach()).detach().requires_grad_(), index, classifier, 0.5)
    looked = seen.detached()

    def run() -> None:
        term = method(seen)
        torch.autograd.backward(term.loss)
        method.after_step(looked, term, None, lambda: looked)

    return run


def by_sizes(rounds: int, repeats: int) -> list[Row]:
    """Each size at once, twice and four times, the others as in BASE."""
    rows = []
    for name, sizes in (("get", "BCD"), ("atdoc-na", "N")):
        for size in sizes:
            made = {f"{size} = {k * BASE[size]}": one_step(name, **{**BASE, size: k * BASE[size]}) for k in (1, 2, 4)}

            def repeated(run: Callable[[], object]) -> Callable[[], object]:
                return lambda: [run() for _ in range(repeats)]

            _, found = interleaved({row: repeated(run) for row, run in made.items()}, rounds)
            first = next(iter(found.values())).cpu
            others = ", ".join(
                f"{key} {value}" for key, value in BASE.items() if key != size and (key in sizes or key != "N")
            )
            rows += [
                Row(
                    "growth", f"{name}: {others}", row, {"CPU-ms a step": 1e3 * t.cpu / repeats, "times": t.cpu / first}
                )
                for row, t in found.items()
            ]
    return rows


def measure(args: argparse.Namespace) -> list[Row]:
    with one_thread():
        return [*by_ranks(args.steps), *by_sizes(args.rounds, args.repeats)]


if __name__ == "__main__":
    script(
        __doc__,
        measure,
        steps=(20, "steps of each number of ranks"),
        rounds=(3, "blocks of each size"),
        repeats=(20, "steps in a block"),
    )
