"""The books of one launch under the checker: who touched which address, and which accesses are wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime import interpreter

TAG_SHIFT = np.uint64(48)  # above it, the number of the argument that a pointer came from
ADDRESS = np.uint64((1 << 48) - 1)
NOBODY, MANY = -1, -2


@dataclass(frozen=True)
class Failure:
    """One wrong access."""

    kind: str  # "outside", "race", "unwritten" or "lanes"
    kernel: str
    program: tuple[int, int, int]
    argument: str
    address: int
    detail: str

    def __str__(self) -> str:
        where = f"{self.kernel}, program {self.program}, argument {self.argument!r}, address {self.address:#x}"
        return f"[{self.kind}] {where}: {self.detail}"


@dataclass
class LaunchTrace:
    """What one launch touched: argument name to the number of its elements read, and written."""

    kernel: str
    reads: dict[str, int] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)


def reachable(tensor: Tensor) -> NDArray[np.bool_]:
    """Which elements between the tensor's first and last belong to it."""
    if tensor.numel() == 0:
        return np.zeros(0, dtype=bool)
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    mask = torch.zeros(extent, dtype=torch.bool)
    mask.as_strided(tensor.shape, tensor.stride()).fill_(True)
    return mask.numpy()


class _Shadow:
    """Who last wrote and read each cell of one storage during one launch, and when."""

    def __init__(self, storage: torch.UntypedStorage, cell: int) -> None:
        self.start, self.cell = storage.data_ptr(), cell
        size = storage.nbytes() // cell
        self.writer, self.reader = np.full(size, NOBODY, np.int64), np.full(size, NOBODY, np.int64)
        self.write_time, self.read_time = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self.atomic = np.zeros(size, dtype=bool)  # the last write was an atomic's

    def cells(self, addresses: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """(lanes, cells per element)"""
        return ((addresses - self.start) // self.cell)[:, None] + np.arange(width // self.cell)


class _Argument:
    """One tensor argument of a launch."""

    def __init__(self, name: str, tensor: Tensor, shadow: _Shadow) -> None:
        self.name, self.shape, self.shadow = name, tuple(tensor.shape), shadow
        self.start, self.width, self.storage = tensor.data_ptr(), tensor.element_size(), tensor.untyped_storage()
        self.reachable = reachable(tensor)
        self.read, self.written = np.zeros_like(self.reachable), np.zeros_like(self.reachable)

    def inside(self, addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
        element, rest = np.divmod(addresses - self.start, self.width)
        known: NDArray[np.bool_] = (rest == 0) & (element >= 0) & (element < len(self.reachable))
        known[known] = self.reachable[element[known]]
        return known


class LaunchBooks:
    """Two programs conflict when one writes what the other reads or writes, unless an acquire-release atomic orders
    them: each atomic hands on, by a release, and takes, by an acquire, the times up to which work was seen."""

    def __init__(
        self,
        kernel: str,
        tensors: list[tuple[str, Tensor]],  # the arguments
        unwritten: dict[int, NDArray[np.bool_]],  # storage address -> per byte, True until written
        failures: list[Failure],  # added to
    ) -> None:
        self.kernel, self.unwritten, self.failures = kernel, unwritten, failures
        cells: dict[int, int] = {}
        for _, t in tensors:
            start = t.untyped_storage().data_ptr()
            cells[start] = min(cells.get(start, 8), t.element_size())
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for _, t in tensors}
        shadows = {start: _Shadow(storage, cells[start]) for start, storage in storages.items()}
        self.arguments = [_Argument(name, t, shadows[t.untyped_storage().data_ptr()]) for name, t in tensors]
        self.clock = 0
        self.last: dict[int, int] = {}  # program -> time of its last access
        self.seen: dict[int, dict[int, int]] = {}  # program -> other program -> time up to which it saw its work
        self.channel: dict[int, dict[int, int]] = {}  # atomic's address -> the same, handed on by a release

    def trace(self) -> LaunchTrace:
        """What was touched so far."""
        reads = {a.name: int(a.read.sum()) for a in self.arguments if a.read.any()}
        return LaunchTrace(
            self.kernel, reads, {a.name: int(a.written.sum()) for a in self.arguments if a.written.any()}
        )

    def access(
        self,
        pointers: NDArray[np.uint64],
        mask: NDArray[np.bool_],
        width: int,
        *,
        read: bool = False,
        value: NDArray[Any] | None = None,  # what is written; None: nothing is
        atomic: Any = None,  # the memory order of an atomic
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Judge one access. Returns the true addresses, and the mask without the lanes that must not be touched."""
        mask = np.broadcast_to(mask, pointers.shape).copy()
        tags = (pointers >> TAG_SHIFT).astype(np.int64)
        plain = (pointers & ADDRESS).astype(np.int64)
        for tag in np.unique(tags[mask]):
            lanes = mask & (tags == tag)
            if not 1 <= tag <= len(self.arguments):
                self._fail("outside", None, plain[lanes][0], "the pointer comes from no argument of this launch")
                mask &= ~lanes
                continue
            argument = self.arguments[tag - 1]
            bad = lanes.copy()
            bad[lanes] = ~argument.inside(plain[lanes])
            if bad.any():
                offset = (int(plain[bad][0]) - argument.start) / argument.width
                what = f"element {offset:g} of a tensor of shape {argument.shape}, {int(bad.sum())} lanes"
                self._fail("outside", argument, plain[bad][0], f"{'reads' if read else 'writes'} {what}")
                mask &= ~bad
            good = lanes & mask
            if good.any():
                values = None if value is None else np.broadcast_to(value, pointers.shape)[good]
                self._book(argument, plain[good], width, read, values, atomic)
        return pointers & ADDRESS, mask

    def _book(
        self, a: _Argument, at: NDArray[np.int64], width: int, read: bool, value: NDArray[Any] | None, atomic: Any
    ) -> None:
        """Enter a good access of one argument into the books, and compare it with what they hold."""
        me, shadow = self._me(), a.shadow
        cells = shadow.cells(at, width)
        element = (at - a.start) // a.width
        self.clock += 1
        self.last[me] = self.clock
        if atomic is not None:
            self._synchronise(int(at.min()), atomic)
        writer, reader = shadow.writer[cells], shadow.reader[cells]
        earlier = writer if atomic is None else np.where(shadow.atomic[cells], NOBODY, writer)
        self._check_order(a, at, earlier, shadow.write_time[cells], "touches what", "wrote")
        if read:
            a.read[element] = True
            self._check_written(a, at, width)
            if atomic is None:
                shadow.reader[cells] = np.where((reader == NOBODY) | (reader == me), me, MANY)
                shadow.read_time[cells] = self.clock
        if value is not None:
            a.written[element] = True
            self._check_order(a, at, reader, shadow.read_time[cells], "writes what", "read")
            if atomic is None:
                self._check_lanes(a, at, value)
            alone = (writer == NOBODY) | (writer == me) | (atomic is None)
            shadow.writer[cells], shadow.write_time[cells] = np.where(alone, me, MANY), self.clock
            shadow.atomic[cells] = atomic is not None
            unwritten = self.unwritten.get(a.storage.data_ptr())
            if unwritten is not None:
                unwritten[(at - a.storage.data_ptr())[:, None] + np.arange(width)] = False

    def _check_written(self, a: _Argument, at: NDArray[np.int64], width: int) -> None:
        unwritten = self.unwritten.get(a.storage.data_ptr())
        if unwritten is not None:
            bad = unwritten[(at - a.storage.data_ptr())[:, None] + np.arange(width)].any(1)
            if bad.any():
                element = (int(at[bad][0]) - a.start) // a.width
                self._fail("unwritten", a, at[bad][0], f"reads element {element}, which nothing has written")

    def _check_lanes(self, a: _Argument, at: NDArray[np.int64], value: NDArray[Any]) -> None:
        order = np.argsort(at, kind="stable")
        same = at[order][1:] == at[order][:-1]
        bits = np.ascontiguousarray(value[order]).view(f"V{value.itemsize}")
        clash = same & (bits[1:] != bits[:-1])
        if clash.any():
            self._fail("lanes", a, at[order][1:][clash][0], "two lanes of one store write different values")

    def _check_order(
        self, a: _Argument, at: NDArray[np.int64], others: NDArray[np.int64], times: NDArray[np.int64], *verbs: str
    ) -> None:
        """A failure where another program did something here that no atomic orders before this access."""
        me = self._me()
        suspect = (others != NOBODY) & (others != me)
        for other in np.unique(others[suspect]).tolist():
            seen = self.seen.get(me, {})
            late = others == other
            if other == MANY:
                late &= any(seen.get(q, -1) < last for q, last in self.last.items() if q != me)
            else:
                late &= times > seen.get(other, -1)
            if late.any():
                who = "several programs" if other == MANY else f"program {self._index(other)}"
                detail = f"{verbs[0]} {who} {verbs[1]} in the same launch"
                self._fail("race", a, at[late.any(1)][0], detail)

    def _synchronise(self, address: int, order: Any) -> None:
        me, kinds = self._me(), interpreter._ir.MEM_SEMANTIC
        seen, channel = self.seen.setdefault(me, {}), self.channel.setdefault(address, {})
        if order in (kinds.ACQUIRE, kinds.ACQUIRE_RELEASE):
            for program, time in channel.items():
                seen[program] = max(seen.get(program, -1), time)
        if order in (kinds.RELEASE, kinds.ACQUIRE_RELEASE):
            for program, time in [*seen.items(), (me, self.clock)]:
                channel[program] = max(channel.get(program, -1), time)

    def _me(self) -> int:
        x, y, z = interpreter.interpreter_builder.grid_idx
        _, ny, nz = interpreter.interpreter_builder.grid_dim
        return int((x * ny + y) * nz + z)

    def _index(self, program: int) -> tuple[int, int, int]:
        _, ny, nz = interpreter.interpreter_builder.grid_dim
        return program // (ny * nz), program // nz % ny, program % nz

    def _fail(self, kind: str, a: _Argument | None, address: Any, detail: str) -> None:
        name = "?" if a is None else a.name
        self.failures.append(Failure(kind, self.kernel, self._index(self._me()), name, int(address), detail))
