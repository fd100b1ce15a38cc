"""Many processes as one: torchrun's ranks, each with its slice of the global batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """This process's place among all."""

    rank: int = 0
    world: int = 1

    @property
    def main(self) -> bool:
        """Rank 0 alone writes and prints."""
        return self.rank == 0

    def mean(self, value: Tensor) -> Tensor:
        """The mean over ranks, on each of them; the value itself where there is one."""
        if self.world == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)
        return total / self.world

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set on any rank."""
        if self.world == 1:
            return flag
        return bool(self.mean(torch.tensor(float(flag), device=device)) > 0)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks, on each of them."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined(device: torch.device) -> Iterator[tuple[Ranks, torch.device]]:
    """Join the group that torchrun describes, if it does: nccl on GPUs, gloo on CPUs. Yields place and device."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks(), device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size()), device
    finally:
        if ours:
            dist.destroy_process_group()
