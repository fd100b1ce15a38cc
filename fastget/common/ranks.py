"""Many processes as one: torchrun's ranks, each with its slice of the global batch."""

from __future__ import annotations

import atexit
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Decided = TypeVar("Decided")
LET_GO_S = 0.2


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

    def decided(self, decide: Callable[[], Decided]) -> Decided:
        """What rank 0 decides, on every rank. Its ValueError is everyone's, so that none is left waiting for it."""
        if self.world == 1:
            return decide()
        mine: tuple[Any, str | None] = (None, None)
        if self.main:
            try:
                mine = decide(), None
            except ValueError as error:
                mine = None, str(error)
        value, refused = self.gather(mine)[0]
        if refused is not None:
            raise ValueError(refused)
        chosen: Decided = value
        return chosen

    def agreed(self, what: str, act: Callable[[], None]) -> None:
        """Every rank does it, or none goes on: ValueError names the first rank that could not, its host and why."""
        if self.world == 1:
            return act()
        why: str | None = None
        try:
            act()
        except ValueError as error:
            why = f"{socket.gethostname()} {what}: {error}"
        for rank, reason in enumerate(self.gather(why)):
            if reason is not None:
                raise ValueError(f"rank {rank} on {reason}")
        return None

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()


class Vote:
    """Whether any rank says yes. Among several it is told one call later: what was said is then on the host, or soon
    will be, and nobody waits for work that was given to the device since. All ranks call it as often."""

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self._ranks, self._device = ranks, device
        self._said: Tensor | None = None  # what came of the last call, on the host once the device has come so far
        self._event: torch.cuda.Event | None = None

    def __call__(self, flag: bool) -> bool:
        if self._ranks.world == 1:
            return flag
        before, event = self._said, self._event
        total = torch.full((), float(flag), device=self._device)
        dist.all_reduce(total)
        if self._device.type == "cuda":
            self._said = torch.empty((), pin_memory=True).copy_(total, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._event.record()
        else:
            self._said = total
        if event is not None:
            event.synchronize()
        return before is not None and bool(before > 0)


def first_of_all() -> bool:
    """Whether this process is rank 0 of those that torchrun started, also before they are joined."""
    return os.environ.get("RANK", "0") == "0"


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
        if device.type != "cuda":
            atexit.unregister(let_go)  # once, however often a group is joined
            atexit.register(let_go)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size()), device
    finally:
        if ours:
            dist.destroy_process_group()


def let_go() -> None:
    """Wait a little before the interpreter is taken down. gloo's threads outlive their group, and one that drops the
    last collective's tensor only after that aborts the process (pytorch/pytorch#179291), though the run is done."""
    time.sleep(LET_GO_S)


# --- sums over the global batch ------------------------------------------------------------------


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """How many ranks share a batch: 1 where none were joined."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(group)


def this_rank() -> int:
    """This process's place among those that share a batch: 0 where none were joined."""
    return dist.get_rank() if world_size() > 1 else 0


def global_sum(value: Tensor) -> Tensor:
    """The sum over ranks, on each of them; the value itself where there is one. What is made of it is the same on all
    ranks and carries the gradient of the global batch, as DistributedDataParallel averages it.

    `value` must not be made of another global sum with a gradient: the other ranks' part of it would be missing.
    """
    if world_size() == 1:
        return value
    total: Tensor = _GlobalSum.apply(value)
    return total


def global_mean(rows: Tensor) -> Tensor:
    """The mean of all ranks' rows (B,), as `global_sum` sums them."""
    return global_sum(rows.sum()) / global_sum(rows.new_full((), len(rows)))


def gathered(value: Tensor) -> Tensor:
    """The rows of all ranks, in the order of ranks, with the gradient of the global batch; every rank has as many."""
    if world_size() == 1:
        return value
    rows: Tensor = _Gathered.apply(value)
    return rows


def global_rows(value: Tensor) -> Tensor:
    """The rows of all ranks, in the order of ranks, on each of them; no gradient. Every rank has as many."""
    if world_size() == 1:
        return value.detach()
    value = value.detach().contiguous()
    rows = [torch.empty_like(value) for _ in range(world_size())]
    dist.all_gather(rows, value)
    return torch.cat(rows)


class _Gathered(torch.autograd.Function):
    """Forward: all-gather. Backward: this rank's rows of world * g, as in _GlobalSum."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return global_rows(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        mine = gradients[0].chunk(world_size())[this_rank()]
        return mine * world_size()


class _GlobalSum(torch.autograd.Function):
    """Forward: all-reduce. Backward: each rank holds the same gradient g of the same loss, and its own part of the sum
    gets world * g, since DistributedDataParallel divides what the ranks add up by their number."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * world_size()
