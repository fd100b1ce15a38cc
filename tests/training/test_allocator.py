"""Freed memory stays with the process: what malloc is told, and that the system is asked for it once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fastget.training import allocator
from fastget.training.allocator import LARGEST, MMAP_MAX, MMAP_THRESHOLD, TRIM_THRESHOLD

# the least page faults of making, filling and freeing a block of 64 MiB, which is more than glibc keeps
FAULTS = """
import resource, sys
import torch
if sys.argv[1] == "kept":
    from fastget.training.allocator import keep_freed_memory
    assert keep_freed_memory()
def fill():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
least = min(fill() for _ in range(20))
print(least)
"""


@pytest.mark.skipif(allocator.glibc_mallopt() is None, reason="glibc's malloc alone")
def test_the_system_is_asked_once() -> None:
    environment = {name: value for name, value in os.environ.items() if not allocator.set_by_user({name: value})}

    def faults(how: str) -> int:
        words = [sys.executable, "-c", FAULTS, how]
        return int(subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout)

    assert faults("kept") < 100
    assert faults("as it comes") > 100  # of 16,384 pages; fewer where the system hands out large ones


@pytest.mark.parametrize("refused", [(), (MMAP_THRESHOLD,), (TRIM_THRESHOLD,), (MMAP_THRESHOLD, MMAP_MAX)])
def test_an_older_glibc_maps_no_block_at_all(refused: tuple[int, ...]) -> None:
    told = []

    def mallopt(parameter: int, value: int, /) -> int:
        told.append((parameter, value))
        return int(parameter not in refused)

    expected = [(MMAP_THRESHOLD, LARGEST), (TRIM_THRESHOLD, -1)]
    if MMAP_THRESHOLD in refused:
        expected.insert(1, (MMAP_MAX, 0))
    if MMAP_MAX in refused:
        expected.pop()
    assert allocator.keep(mallopt) == (refused in [(), (MMAP_THRESHOLD,)])
    assert told == expected


@pytest.mark.parametrize(
    ("environment", "own"),
    [
        ({}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "1"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, True),
        ({"GLIBC_TUNABLES": "glibc.cpu.x=1"}, False),
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, True),
        ({"LD_PRELOAD": "/usr/lib/libtcmalloc.so.4"}, True),
    ],
)
def test_what_the_user_has_set_up_is_left_alone(environment: dict[str, str], own: bool) -> None:
    assert allocator.set_by_user(environment) == own
