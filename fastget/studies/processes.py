"""The process of one command, started anew or from one that has imported all that training needs.

A run on stored features takes seconds, as many as the imports do. So on a CPU a server imports them once, and every run
is a fork of it (multiprocessing's forkserver); it ends with the process that started it, the runs go on. On a GPU, and
on systems where a library may not survive the fork, each run is a new Python.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import reduction
from multiprocessing.context import ForkServerContext
from typing import Any, Protocol

# torch imports the last two late, in a run's first steps
IMPORTED = ("fastget.commands.train", "fastget.training.train", "torch._dynamo", "torch.utils.tensorboard")
FASTGET = (sys.executable, "-m", "fastget")  # how a command of ours begins
CAN_FORK = sys.platform == "linux"


class Process(Protocol):
    """What the pool needs of a process."""

    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start(words: Sequence[str], variables: Mapping[str, str], log: int, *, warm: bool) -> Process:
    """A command with these environment variables, printing to an open file, in a session of its own: a terminal's
    Ctrl-C is the study's alone, a second signal would end the run unsaved. The file stays open as long as it lives.
    `warm`: one of ours is forked, where that can be done."""
    if warm and CAN_FORK and tuple(words[:3]) == FASTGET:
        return _Forked(words[3:], variables, log)
    return subprocess.Popen(
        list(words),
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


class _Forked:
    """A fork of the server, with subprocess.Popen's three methods."""

    def __init__(self, words: Sequence[str], variables: Mapping[str, str], log: int) -> None:
        self._process = _server().Process(target=_run, args=(list(words), dict(variables), _Inherited(log)))
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


class _Inherited:
    """An open file that a started process has too."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.number)

    def __setstate__(self, handed: Any) -> None:
        self.number = handed.detach()


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    return context


def _run(words: list[str], variables: dict[str, str], log: _Inherited) -> None:
    """In the fork: what `python -m fastget` does."""
    os.setsid()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for stream in (1, 2):
        os.dup2(log.number, stream)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["fastget", *words]
    runpy.run_module("fastget", run_name="__main__", alter_sys=True)
