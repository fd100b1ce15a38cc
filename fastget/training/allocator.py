"""Freed memory stays with a process that computes on a CPU.

glibc hands every block of more than 32 MiB back to the system when it is freed, and asks for it anew in the next step.
A network's activations are such blocks from a batch of some ten images on, and each page of them is then cleared by the
system once for every use: a quarter of the CPU time of a step of ResNet-50 at 24 + 24 images (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache
from typing import Protocol

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # malloc.h's names for mallopt(), without their M_
LARGEST = 1 << 30  # bytes of a block that may be kept; mallopt() takes an int


class Mallopt(Protocol):
    """malloc.h: 1 if the parameter was set, 0 if not."""

    def __call__(self, parameter: int, value: int, /) -> int: ...


@cache
def keep_freed_memory() -> bool:
    """Once for the process; whether it does. Not where the user has set malloc up, nor without glibc."""
    mallopt = None if set_by_user(os.environ) else glibc_mallopt()
    return mallopt is not None and keep(mallopt)


def set_by_user(environment: Mapping[str, str]) -> bool:
    """By the variables of mallopt(3), or by another allocator in place of glibc's."""
    if "glibc.malloc" in environment.get("GLIBC_TUNABLES", "") or "malloc" in environment.get("LD_PRELOAD", ""):
        return True
    return any(name.startswith("MALLOC_") and name.endswith("_") for name in environment)


def glibc_mallopt() -> Mallopt | None:
    """None on another system, and under another C library."""
    if "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}):
        return None
    mallopt: Mallopt | None = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt


def keep(mallopt: Mallopt) -> bool:
    """No block of its own mapping up to LARGEST, or, where glibc allows 32 MiB at the most, none at all; and the end of
    the heap is never given back."""
    return bool((mallopt(MMAP_THRESHOLD, LARGEST) or mallopt(MMAP_MAX, 0)) and mallopt(TRIM_THRESHOLD, -1))
