"""Triton's own runtime without a GPU, up to the call that would hand a kernel to the driver.

with without_gpu(arrived.append):
    kernels.update_prior(pi, pi, 0.5)      # CPU tensors; compiled for sm_90, launched nowhere

Arguments are bound, specialised and compiled by Triton as on a card; what its launcher would get arrives at the given
function. For tests of what is launched, and for the time of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from fastget.kernels import checks
from fastget.kernels.launch import interpreting

STREAM = 7  # the number of the one stream


class Arrived(NamedTuple):
    """What a launcher is called with."""

    grid: tuple[int, int, int]
    stream: int
    function: str  # the compiled kernel's handle: its name and the hash of what it was compiled from
    metadata: Any
    args: tuple[Any, ...]  # of the kernel, constexprs among them


class _Driver:
    """One device and one stream that run nothing."""

    def __init__(self, arrive: Callable[[Arrived], object] | None, arch: int) -> None:
        self.arrive, self.arch = arrive, arch
        self.utils = SimpleNamespace(
            load_binary=lambda name, binary, shared, device: (0, f"{name} {hash(binary):x}", 0, 0, 1024),
            get_device_properties=lambda device: {"max_shared_mem": 232448},
            unload_module=lambda module: None,
        )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return STREAM

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        arrive = self.arrive

        def launcher(
            x: int,
            y: int,
            z: int,
            stream: int,
            function: str,
            packed: Any,
            seen: Any,
            enter: Any,
            leave: Any,
            *args: Any,
        ) -> None:
            if arrive is not None:
                arrive(Arrived((x, y, z), stream, function, packed, args))

        return launcher


@contextmanager
def without_gpu(arrive: Callable[[Arrived], object] | None = None, arch: int = 90) -> Iterator[None]:
    """Inside, CPU tensors are taken for a GPU's, and a launch ends in `arrive`. Once in a process: compiled kernels
    keep the launcher that they met first."""
    if interpreting():
        raise ValueError("TRITON_INTERPRET is set: the kernels are interpreted, and Triton's launcher never runs")
    before, can_run = driver._active, checks.check_runs
    driver.set_active(_Driver(arrive, arch))
    checks.check_runs = lambda name, x: None
    try:
        yield
    finally:
        driver._active, checks.check_runs = before, can_run
