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
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter

from tests.kernels.launch_books import TAG_SHIFT, Failure, LaunchBooks, LaunchTrace, reachable

EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class AddressError(AssertionError):
    """A kernel touched memory that it must not touch."""


class AddressChecker(TorchDispatchMode):
    """Use it through `check_addresses()`. A dispatch mode, to see which tensors are allocated and not yet written."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Failure] = []
        self.launches: list[LaunchTrace] = []
        self._unwritten: dict[int, NDArray[np.bool_]] = {}  # storage address -> per byte, True until written
        self._alive: list[Tensor] = []  # keeps those storages, so that no address is used twice
        self.books: LaunchBooks | None = None  # of the launch that runs

    # --- what PyTorch allocates and fills --------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.books is not None:  # the interpreter's own handling of the arguments
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
            filled = np.repeat(reachable(tensor), tensor.element_size())
            unwritten[first : first + len(filled)] &= ~filled

    @contextmanager
    def launch(self, kernel: str, tensors: list[tuple[str, Tensor]]) -> Iterator[None]:
        """Fresh books for one launch; at its end a note of what it touched."""
        self.books = LaunchBooks(kernel, tensors, self._unwritten, self.failures)
        try:
            yield
        finally:
            self.launches.append(self.books.trace())
            self.books = None


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

    def access(*args: Any, **kwargs: Any) -> Any:
        assert checker.books is not None
        return checker.books.access(*args, **kwargs)

    def checked_load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any) -> Any:
        at, allowed = access(ptrs.data, mask.data, _width(ptrs), read=True)
        return load(self, handle(at, ptrs.dtype), handle(allowed, mask.dtype), other, *rest)

    def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        at, allowed = access(ptrs.data, mask.data, _width(ptrs), value=value.data)
        return store(self, handle(at, ptrs.dtype), value, handle(allowed, mask.dtype), *rest)

    def checked_rmw(self: Any, op: Any, ptr: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        at, allowed = access(ptr.data, mask.data, _width(ptr), read=True, value=value.data, atomic=sem)
        return rmw(self, op, handle(at, ptr.dtype), value, handle(allowed, mask.dtype), sem, scope)

    def checked_cas(self: Any, ptr: Any, cmp: Any, value: Any, sem: Any, scope: Any) -> Any:
        everywhere = np.ones_like(ptr.data, dtype=bool)
        at, allowed = access(ptr.data, everywhere, _width(ptr), read=True, value=value.data, atomic=sem)
        if not allowed.all():  # cas has no mask: an access that must not happen ends the launch
            raise AddressError(str(checker.failures[-1]))
        return cas(self, handle(at, ptr.dtype), cmp, value, sem, scope)

    def checked_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal tags
        names = inspect.signature(self.fn).parameters
        bound = inspect.getcallargs(self.fn, *args, **{k: v for k, v in kwargs.items() if k in names})
        tensors = [pair for k, v in bound.items() if k not in self.constexprs for pair in _tensors(k, v)]
        tags = iter(range(1, len(tensors) + 1))
        with checker.launch(self.fn.__name__, tensors):
            return call(self, *args, **kwargs)

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
