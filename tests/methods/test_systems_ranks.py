"""The formulas of the systems that the paper compares with, on two ranks with half the batch each."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from fastget.methods import formulas
from tests.methods import systems
from tests.methods.plain import assert_equal

ROW_BY_ROW = {"ape_perturbation", "rtnet_errors", "rtnet_rewards", "s3d_labels", "s3d_statistics", "s3d_style"}
WITHOUT_A_BATCH = {"arpm_weights", "s3d_weight", "warm_reversal"}
BATCH = sorted(systems.CALLS.keys() - ROW_BY_ROW - WITHOUT_A_BATCH)


def share(name: str, rank: int) -> tuple[Any, ...]:
    """A rank's half of a formula's arguments."""
    if name == "dann":  # two of four source rows, one of two target rows
        return systems.CALLS[name][0][[2 * rank, 2 * rank + 1, 4 + rank]], 2
    return tuple(a.chunk(2)[rank] if isinstance(a, Tensor) else a for a in systems.CALLS[name])


def made(name: str, arguments: tuple[Any, ...]) -> tuple[Tensor, list[Tensor]]:
    """The value, and the gradients of those arguments that have one."""
    given = [a.clone().requires_grad_() if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments]
    value = getattr(formulas, name)(*given)
    if value.requires_grad:
        value.backward()
    return value.detach(), [a.grad for a in given if torch.is_tensor(a) and a.grad is not None]


def on_a_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save({name: made(name, share(name, rank)) for name in BATCH}, folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_follow_one(tmp_path: Path) -> None:
    """Values of the global batch on both; gradients that, averaged over ranks, are those of one."""
    spawn(on_a_rank, (tmp_path,), nprocs=2)
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name in BATCH:
        value, slopes = made(name, systems.CALLS[name])
        if name == "shot_labels":
            assert torch.equal(torch.cat([one[name][0], other[name][0]]), value)
            continue
        assert_equal(one[name][0], value)
        assert_equal(other[name][0], value)
        for a, b, wanted in zip(one[name][1], other[name][1], slopes, strict=True):
            rows = torch.cat([a, b]) / 2
            assert_equal(rows[[0, 1, 3, 4, 2, 5]] if name == "dann" else rows, wanted)
