"""What Triton's interpreter does not see: addresses outside a tensor, races, reads of unwritten memory, program order.

    with check_addresses() as seen:       # raises AddressError at the end, naming kernel, program and address
        kernels.expectation(...)
    for launch in seen.launches: ...      # what each launch touched, argument by argument

    with program_order("shuffled", seed=1):
        kernels.expectation(...)

Each pointer argument carries its number in the 16 high bits of its address, which user memory leaves free: pointer
arithmetic keeps them, so an access is judged against the tensor that its pointer came from, not against any tensor.
Two programs conflict when one writes what the other reads or writes, unless an acquire-release atomic orders them.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter

TAG_SHIFT = np.uint64(48)
ADDRESS = np.uint64((1 << 48) - 1)
NOBODY, MANY = -1, -2
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class AddressError(AssertionError):
    """A kernel touched memory that it must not touch."""


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


def _reachable(tensor: Tensor) -> NDArray[np.bool_]:
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
        self.reachable = _reachable(tensor)
        self.read, self.written = np.zeros_like(self.reachable), np.zeros_like(self.reachable)

    def inside(self, addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
        element, rest = np.divmod(addresses - self.start, self.width)
        known: NDArray[np.bool_] = (rest == 0) & (element >= 0) & (element < len(self.reachable))
        known[known] = self.reachable[element[known]]
        return known


class AddressChecker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Use it through `check_addresses()`. A dispatch mode, to see which tensors are allocated and not yet written."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.failures: list[Failure] = []
        self.launches: list[LaunchTrace] = []
        self._unwritten: dict[int, NDArray[np.bool_]] = {}  # storage address -> per byte, True until written
        self._alive: list[Tensor] = []  # keeps those storages, so that no address is used twice
        self._arguments: list[_Argument] = []
        self._running = False
        self._clock = 0
        self._last: dict[int, int] = {}  # program -> time of its last access
        self._seen: dict[int, dict[int, int]] = {}  # program -> other program -> time up to which it saw its work
        self._channel: dict[int, dict[int, int]] = {}  # atomic's address -> the same, handed on by a release

    # --- what PyTorch allocates and fills --------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self._running:  # the interpreter's own handling of the arguments
            return out
        if func.overloadpacket.__name__ in EMPTY:
            self._alive.append(out)
            storage = out.untyped_storage()
            self._unwritten[storage.data_ptr()] = np.ones(storage.nbytes(), dtype=bool)
        for position, schema in enumerate(func._schema.arguments):
            if schema.alias_info is not None and schema.alias_info.is_write:
                value = args[position] if position < len(args) else kwargs.get(schema.name)
                for tensor in value if isinstance(value, (list, tuple)) else [value]:
                    if isinstance(tensor, Tensor):
                        self._fill(tensor)
        return out

    def _fill(self, tensor: Tensor) -> None:
        unwritten = self._unwritten.get(tensor.untyped_storage().data_ptr())
        if unwritten is not None:
            first = tensor.storage_offset() * tensor.element_size()
            filled = np.repeat(_reachable(tensor), tensor.element_size())
            unwritten[first : first + len(filled)] &= ~filled

    # --- a launch --------------------------------------------------------------------------------

    def begin(self, kernel: str, tensors: list[tuple[str, Tensor]]) -> None:
        """Fresh books for one launch."""
        self._running, self._clock, self._last, self._seen, self._channel = True, 0, {}, {}, {}
        cells: dict[int, int] = {}
        for _, tensor in tensors:
            start = tensor.untyped_storage().data_ptr()
            cells[start] = min(cells.get(start, 8), tensor.element_size())
        shadows = {t.untyped_storage().data_ptr(): t.untyped_storage() for _, t in tensors}
        books = {start: _Shadow(storage, cells[start]) for start, storage in shadows.items()}
        self._arguments = [_Argument(name, t, books[t.untyped_storage().data_ptr()]) for name, t in tensors]
        self.launches.append(LaunchTrace(kernel))

    def end(self) -> None:
        """Close the launch's books and note what it touched."""
        self._running = False
        for a in self._arguments:
            if a.read.any():
                self.launches[-1].reads[a.name] = int(a.read.sum())
            if a.written.any():
                self.launches[-1].writes[a.name] = int(a.written.sum())

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
            if not 1 <= tag <= len(self._arguments):
                self._fail("outside", None, plain[lanes][0], "the pointer comes from no argument of this launch")
                mask &= ~lanes
                continue
            argument = self._arguments[tag - 1]
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
        self._clock += 1
        self._last[me] = self._clock
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
                shadow.read_time[cells] = self._clock
        if value is not None:
            a.written[element] = True
            self._check_order(a, at, reader, shadow.read_time[cells], "writes what", "read")
            if atomic is None:
                self._check_lanes(a, at, value)
            alone = (writer == NOBODY) | (writer == me) | (atomic is None)
            shadow.writer[cells], shadow.write_time[cells] = np.where(alone, me, MANY), self._clock
            shadow.atomic[cells] = atomic is not None
            unwritten = self._unwritten.get(a.storage.data_ptr())
            if unwritten is not None:
                unwritten[(at - a.storage.data_ptr())[:, None] + np.arange(width)] = False

    def _check_written(self, a: _Argument, at: NDArray[np.int64], width: int) -> None:
        unwritten = self._unwritten.get(a.storage.data_ptr())
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
            seen = self._seen.get(me, {})
            late = others == other
            if other == MANY:
                late &= any(seen.get(q, -1) < last for q, last in self._last.items() if q != me)
            else:
                late &= times > seen.get(other, -1)
            if late.any():
                who = "several programs" if other == MANY else f"program {self._index(other)}"
                detail = f"{verbs[0]} {who} {verbs[1]} in the same launch"
                self._fail("race", a, at[late.any(1)][0], detail)

    def _synchronise(self, address: int, order: Any) -> None:
        me, kinds = self._me(), interpreter._ir.MEM_SEMANTIC
        seen, channel = self._seen.setdefault(me, {}), self._channel.setdefault(address, {})
        if order in (kinds.ACQUIRE, kinds.ACQUIRE_RELEASE):
            for program, time in channel.items():
                seen[program] = max(seen.get(program, -1), time)
        if order in (kinds.RELEASE, kinds.ACQUIRE_RELEASE):
            for program, time in [*seen.items(), (me, self._clock)]:
                channel[program] = max(channel.get(program, -1), time)

    # --- names -----------------------------------------------------------------------------------

    def _me(self) -> int:
        x, y, z = interpreter.interpreter_builder.grid_idx
        _, ny, nz = interpreter.interpreter_builder.grid_dim
        return int((x * ny + y) * nz + z)

    def _index(self, program: int) -> tuple[int, int, int]:
        _, ny, nz = interpreter.interpreter_builder.grid_dim
        return program // (ny * nz), program // nz % ny, program % nz

    def _fail(self, kind: str, a: _Argument | None, address: Any, detail: str) -> None:
        name = "?" if a is None else a.name
        kernel, program = self.launches[-1].kernel, self._index(self._me())
        self.failures.append(Failure(kind, kernel, program, name, int(address), detail))


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors behind one argument, in the order in which the interpreter converts them."""
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _tensors(f"{name}[{i}]", item)
    elif isinstance(value, triton.tools.tensor_descriptor.TensorDescriptor):
        yield from _tensors(name, value.base)
    elif hasattr(value, "data_ptr"):
        yield name, getattr(value, "base", value)


def _need_interpreter() -> None:
    if not triton.knobs.runtime.interpret:
        raise ValueError("the checker works on Triton's interpreter: set TRITON_INTERPRET=1 before triton is imported")


def _width(pointers: Any) -> int:
    return int(interpreter._get_np_dtype(pointers.get_element_ty()).itemsize)


def _patches(checker: AddressChecker) -> dict[tuple[Any, str], Callable[..., Any]]:
    """The interpreter's functions that the checker stands in front of."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas
    call, convert = interpreter.GridExecutor.__call__, interpreter._implicit_cvt
    tags: Iterator[int] = iter(())

    def checked_load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any) -> Any:
        at, allowed = checker.access(ptrs.data, mask.data, _width(ptrs), read=True)
        return load(self, handle(at, ptrs.dtype), handle(allowed, mask.dtype), other, *rest)

    def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        at, allowed = checker.access(ptrs.data, mask.data, _width(ptrs), value=value.data)
        return store(self, handle(at, ptrs.dtype), value, handle(allowed, mask.dtype), *rest)

    def checked_rmw(self: Any, op: Any, ptr: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        at, allowed = checker.access(ptr.data, mask.data, _width(ptr), read=True, value=value.data, atomic=sem)
        return rmw(self, op, handle(at, ptr.dtype), value, handle(allowed, mask.dtype), sem, scope)

    def checked_cas(self: Any, ptr: Any, cmp: Any, value: Any, sem: Any, scope: Any) -> Any:
        everywhere = np.ones_like(ptr.data, dtype=bool)
        at, allowed = checker.access(ptr.data, everywhere, _width(ptr), read=True, value=value.data, atomic=sem)
        if not allowed.all():  # cas has no mask: an access that must not happen ends the launch
            raise AddressError(str(checker.failures[-1]))
        return cas(self, handle(at, ptr.dtype), cmp, value, sem, scope)

    def checked_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal tags
        names = inspect.signature(self.fn).parameters
        bound = inspect.getcallargs(self.fn, *args, **{k: v for k, v in kwargs.items() if k in names})
        tensors = [pair for k, v in bound.items() if k not in self.constexprs for pair in _tensors(k, v)]
        tags = iter(range(1, len(tensors) + 1))
        checker.begin(self.fn.__name__, tensors)
        try:
            return call(self, *args, **kwargs)
        finally:
            checker.end()

    def tagged(arg: Any) -> Any:
        converted = convert(arg)
        if hasattr(arg, "data_ptr"):
            converted.handle.data = converted.handle.data | (np.uint64(next(tags)) << TAG_SHIFT)
        return converted

    return {
        (builder, "create_masked_load"): checked_load,
        (builder, "create_masked_store"): checked_store,
        (builder, "create_atomic_rmw"): checked_rmw,
        (builder, "create_atomic_cas"): checked_cas,
        (interpreter.GridExecutor, "__call__"): checked_call,
        (interpreter, "_implicit_cvt"): tagged,
    }


@contextmanager
def check_addresses(*, collect: bool = False) -> Iterator[AddressChecker]:
    """Judge every access of every launch inside. Raises AddressError at the end, or only collects `failures`."""
    _need_interpreter()
    checker = AddressChecker()
    with ExitStack() as stack:
        for (owner, name), replacement in _patches(checker).items():
            stack.enter_context(patch.object(owner, name, replacement))
        stack.enter_context(checker)
        yield checker
    if checker.failures and not collect:
        shown = "\n  ".join(str(f) for f in checker.failures[:8])
        raise AddressError(f"{len(checker.failures)} wrong accesses:\n  {shown}")


@contextmanager
def program_order(order: str, seed: int = 0) -> Iterator[None]:
    """Run the programs of every launch inside in "forward", "reversed" or "shuffled" order."""
    _need_interpreter()
    if order not in ("forward", "reversed", "shuffled"):
        raise ValueError(f"order must be 'forward', 'reversed' or 'shuffled', got {order!r}")
    builder = interpreter.InterpreterBuilder
    set_dim, set_index = builder.set_grid_dim, builder.set_grid_idx
    permutation: list[int] = []

    def ordered_dim(self: Any, nx: int, ny: int, nz: int) -> None:
        set_dim(self, nx, ny, nz)
        permutation[:] = range(nx * ny * nz)
        if order == "reversed":
            permutation.reverse()
        elif order == "shuffled":
            random.Random(seed).shuffle(permutation)

    def ordered_index(self: Any, x: int, y: int, z: int) -> None:
        _, ny, nz = self.grid_dim
        program = permutation[(x * ny + y) * nz + z]
        set_index(self, program // (ny * nz), program // nz % ny, program % nz)

    with patch.object(builder, "set_grid_dim", ordered_dim), patch.object(builder, "set_grid_idx", ordered_index):
        yield


def assert_order_free(run: Callable[[], tuple[Tensor, ...]], seeds: tuple[int, ...] = (1, 2)) -> None:
    """`run` gives the same bits whatever the order of the programs. It must make its own copies of what it changes."""
    expected = [t.clone() for t in run()]
    for order, seed in [("reversed", 0), *(("shuffled", s) for s in seeds)]:
        with program_order(order, seed):
            got = run()
        for i, (a, b) in enumerate(zip(expected, got, strict=True)):
            same = torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
            if not same:
                raise AssertionError(f"output {i} depends on the order of programs: {order}, seed {seed}")
