"""A memory of every target image, a feature and a prediction each, for methods that ask an image's neighbours.

An image that nothing was written of yet has a row of zeros and is nobody's neighbour. Several ranks share the memory
out: image i's row is on rank i // S, S = ceil(N / W). A checkpoint holds all of it, in one piece.

Shapes: B target images, C classes, D feature width, N images in all, W ranks, S rows on each.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fastget.common.ranks import global_rows, global_sum, this_rank, world_size
from fastget.methods.base import Method, Seen, Task, Whole
from fastget.methods.neighbours import LOOK, filled, shared_neighbour_sums, wide

MEMORY = ("memory_f", "memory_q")
GATHERED = 2**24  # bytes of the memory that a checkpoint takes from each rank at a time
AT_ONCE = 1024  # images of each rank that are written at a time


def bytes_kept(config: Any, task: Task, ranks: int) -> int:
    """Of the memory, on each rank."""
    rows = math.ceil(task.target_images / ranks)
    return rows * (task.feature_dim + task.num_classes) * (2 if config.store == "float16" else 4)


class SharedMemory(Method):
    """A method that has one; its section has `neighbours` and `store`."""

    section: ClassVar[str]  # its name, for what it says
    memory_f: Tensor  # (S, D) this rank's share; the last one's may end in rows of no image, which stay empty
    memory_q: Tensor  # (S, C)

    def __init__(self, config: Any, task: Task) -> None:
        super().__init__(config, task)
        share = math.ceil(task.target_images / world_size())
        dtype = torch.float16 if config.store == "float16" else None  # none: torch's default, float32
        for name, width in zip(MEMORY, (task.feature_dim, task.num_classes), strict=True):
            self.register_buffer(name, torch.zeros(share, width, dtype=dtype))

    @classmethod
    def keeps(cls, config: Any, task: Task, ranks: int) -> str:
        size = bytes_kept(config, task, ranks) / 2**20
        amount = f"{size / 1024:,.2f} GiB" if size >= 1024 else f"{size:,.1f} MiB"
        each = f" on each of {ranks} ranks" if ranks > 1 else ""
        less = "" if config.store == "float16" else f"; {cls.section}.store=float16 halves it"
        return (
            f"{config.title} keeps {task.target_images:,} x ({task.feature_dim} + {task.num_classes}) numbers in "
            f"{config.store}: {amount}{each}{less}. Its look-up takes at most {LOOK // 2**20} MiB more"
        )

    @torch.no_grad()
    def neighbour_sums(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """(B, C) sums over each image's nearest, and (B, K) their inner products. Every rank calls it."""
        f = seen.features.to(wide(seen.features.dtype))
        return shared_neighbour_sums(f, seen.index, self.memory_f, self.memory_q, self.config.neighbours)

    @torch.no_grad()
    def write(self, features: Tensor, q: Tensor, index: Tensor, skip: Tensor | None = None) -> None:
        """Features, made unit, and predictions (B, C) over the rows of the images `index`; -1: of none. Every rank
        calls it, with as many."""
        f = F.normalize(features.to(wide(features.dtype)), dim=1)
        index = global_rows(index) - this_rank() * len(self.memory_f)
        row = index.clamp(0, len(self.memory_f) - 1)
        last, write = _last_of(row, row == index)
        if skip is not None:
            write = write & (skip == 0)
        for memory, new in ((self.memory_f, f), (self.memory_q, q)):
            rows = global_rows(new.to(memory.dtype))[last]
            memory[row] = torch.where(write[:, None], rows, memory[row])  # what is twice in `row` is written alike

    @torch.no_grad()
    def write_all(self, whole: Whole) -> None:
        """The whole target's features and predictions. Ranks may have read unequal numbers of images."""
        f = torch.cat([whole.logits.new_empty(0, self.task.feature_dim), *whole.features])
        most = int(global_rows(torch.tensor([len(f)], device=f.device)).max())
        more = most - len(f)
        f, p = F.pad(f, (0, 0, 0, more)), F.pad(whole.logits.softmax(1), (0, 0, 0, more))
        index = F.pad(whole.index, (0, more), value=-1)
        for start in range(0, most, AT_ONCE):
            self.write(*(rows[start : start + AT_ONCE] for rows in (f, p, index)))

    def check(self) -> None:
        """Refuse a memory that a resumed run could not use."""
        f, q = (memory.sum(dtype=wide(memory.dtype)) for memory in (self.memory_f, self.memory_q))
        if not bool(torch.isfinite(global_sum(f + q))):
            raise ValueError(f"non-finite features in the memory of {self.config.title}")

    def figures(self) -> dict[str, Tensor]:
        rows = filled(self.memory_f)
        classes = torch.bincount(self.memory_q.argmax(1)[rows], minlength=self.task.num_classes)
        count, classes = global_sum(rows.sum()), global_sum(classes)
        return {"memory/filled": count / self.task.target_images, "memory/classes": classes / count.clamp_min(1)}

    # --- checkpoints: the whole memory, however many ranks share it -------------------------------

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if world_size() > 1:
            for name in MEMORY:
                destination[prefix + name] = self._whole(getattr(self, name))

    def _whole(self, memory: Tensor) -> Tensor:
        """(N, .) on the CPU, of every rank's share. Rank 0 alone has it, which writes the checkpoint."""
        share, width = memory.shape
        main = this_rank() == 0
        whole = torch.empty(world_size() if main else 0, share, width, dtype=memory.dtype)
        size = max(1, GATHERED // (width * memory.element_size()))
        for start in range(0, share, size):
            part = global_rows(memory[start : start + size])
            if main:
                whole[:, start : start + size] = part.view(world_size(), -1, width).cpu()
        return whole.flatten(0, 1)[: self.task.target_images]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name in MEMORY if world_size() > 1 else ():
            if (key := prefix + name) in state_dict:
                state_dict[key] = self._share(state_dict[key])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _share(self, whole: Tensor) -> Tensor:
        """(S, .) this rank's rows of the whole memory, and rows of zeros in place of images that there are not."""
        if len(whole) != self.task.target_images:
            return whole.new_empty(0)  # refused by its shape
        share = len(self.memory_f)
        mine = whole[this_rank() * share : (this_rank() + 1) * share]
        return F.pad(mine, (0, 0, 0, share - len(mine)))


def _last_of(row: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) for each entry the last one of the same row that counts, and whether there is one: an image twice in a batch
    leaves its last features."""
    order = torch.arange(1, len(row) + 1, device=row.device)
    last = ((row[:, None] == row) & counts) * order
    return last.argmax(1), last.amax(1) > 0
