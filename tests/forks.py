"""Processes that start at once: forks of a server that has imported what training needs, one or several as ranks."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.commandline import Said

IMPORTED = ["fastget.commands.train", "fastget.training.train", "torch._dynamo", "torch.utils.tensorboard"]
PATIENCE = 300  # seconds


@cache
def server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def run_module(module: str, words: Sequence[str], variables: Mapping[str, str], folder: str, said: str) -> None:
    """In the fork: what `python -m module words` does in a folder."""
    import torch

    os.chdir(folder)
    for stream, name in ((1, "out"), (2, "err")):
        file = os.open(f"{said}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, stream)
    os.environ.update(variables)
    torch.set_num_threads(1)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def fork(module: str, words: Sequence[object], variables: Mapping[str, str], folder: Path, said: Path) -> BaseProcess:
    """A process of `python -m module words`, which writes to `said`.out and `said`.err."""
    given = (module, [str(word) for word in words], dict(variables), str(folder), str(said.absolute()))
    process: BaseProcess = server().Process(target=run_module, args=given)
    process.start()
    return process


def ended(processes: Sequence[BaseProcess], patience: float = PATIENCE) -> list[int | None]:
    """Their exit codes; None for one that had to be killed."""
    ends = time.monotonic() + patience
    for process in processes:
        process.join(max(0.0, ends - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


def as_ranks(
    count: int,
    *words: object,
    module: str = "fastget",
    folders: Sequence[Path] = (),  # of each rank; default: this one
    said: Path = Path("ranks"),
) -> tuple[list[int | None], Said]:
    """`python -m module words` as ranks of one group: the exit code of each, and what all of them said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        group = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    places = [{**group, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    homes = folders or [Path.cwd()] * count
    processes = [fork(module, words, place, home, said) for place, home in zip(places, homes, strict=True)]
    codes = ended(processes)
    texts = [Path(f"{said}.{name}").read_text(errors="replace") for name in ("out", "err")]
    for name in ("out", "err"):
        Path(f"{said}.{name}").unlink()
    return codes, Said(max((code or 0 for code in codes), default=0), *texts)


def elsewhere(*words: object) -> Said:
    """`fastget words` in a process of its own."""
    return as_ranks(1, *words, said=Path("elsewhere"))[1]
