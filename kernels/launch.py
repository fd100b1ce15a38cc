"""The one function that every launch goes through, and the record of launches that tests and reports read.

with record() as launches:
    step()
len(launches), sum(launch.bytes for launch in launches)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

# Off: fused, the first add of a sum over products (`tl.sum(f * f, 1)`) takes one of its two numbers unrounded, so that
# lanes hold sums of one row that differ in the last bit, and which of them is stored is not defined. tl.dot says itself
# what it fuses.
FP_FUSION = False


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel: what ran, on what."""

    name: str
    kernel: Any  # the object that @triton.jit made
    grid: tuple[int, ...]
    args: tuple[Any, ...]  # the arguments before the constexprs, in order
    constexprs: dict[str, Any]
    reads: tuple[Tensor, ...]  # every tensor it reads, once
    writes: tuple[Tensor, ...]  # every tensor it writes, once; one that is changed in place stands in both
    num_warps: int
    num_stages: int

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.reads, *self.writes))

    def aliased(self) -> Launch:
        """The same with other handles on its tensors."""
        args, reads, writes = (tuple(map(_alias, tensors)) for tensors in (self.args, self.reads, self.writes))
        return replace(self, args=args, reads=reads, writes=writes)


def compile_options(num_warps: int, num_stages: int, backend: str = "cuda") -> dict[str, Any]:
    """What a launch says to the compiler. `backend` is "cuda" or "hip".

    maxnreg: a thread may take all the registers that its block leaves it. Without it ptxas aims at a higher occupancy
    and spills a few bytes for it, in kernels that fit without.
    """
    options: dict[str, Any] = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": FP_FUSION}
    if backend == "cuda":
        options["maxnreg"] = min(255, 65536 // (32 * num_warps))
    return options


HOOKS: list[Callable[[Launch], None]] = []  # called before each launch
_dry = 0  # > 0 inside record(dry=True): launches are recorded and not run

_interpreting = bool(triton.knobs.runtime.interpret)  # settled when @triton.jit meets the kernels


def interpreting() -> bool:
    """Whether the kernels run on Triton's interpreter: TRITON_INTERPRET=1 was set before triton was imported."""
    return _interpreting


def dry() -> bool:
    """Whether launches are only recorded, so that tensors need not be on a device that can run them."""
    return _dry > 0


def launch(
    kernel: Any,
    grid: Sequence[int],
    *args: Any,
    writes: Sequence[Tensor | None],
    in_place: Sequence[Tensor | None] = (),
    num_warps: int = 4,
    num_stages: int = 2,
    **constexprs: Any,
) -> None:
    """Run `kernel` over `grid` on the device of its tensors. It writes `writes`, reads and writes `in_place`, and reads
    every other tensor among `args`; a None is an absent tensor."""
    if HOOKS:
        written, changed = (tuple(t for t in tensors if t is not None) for tensors in (writes, in_place))
        own = {id(t) for t in written}
        read = tuple(t for t in args if isinstance(t, Tensor) and id(t) not in own)
        made = Launch(
            kernel.fn.__name__, kernel, tuple(grid), args, constexprs, read, (*changed, *written), num_warps, num_stages
        )
        for hook in list(HOOKS):
            hook(made.aliased())
    if _dry:
        return
    device = next(t.device for t in args if isinstance(t, Tensor))
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        options = compile_options(num_warps, num_stages, "cuda" if torch.version.hip is None else "hip")
        kernel[tuple(grid)](*args, **options, **constexprs)


def empty(like: Tensor, *shape: int) -> Tensor:
    """Room for float32 results, beside `like`."""
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _alias(value: Any) -> Any:
    """Another handle on the same memory: autograd copies a gradient to which somebody else holds the handle."""
    return value.detach() if isinstance(value, Tensor) else value


@contextmanager
def record(dry: bool = False) -> Iterator[list[Launch]]:
    """The launches made inside the block. With `dry` they are not run: what is read afterwards is not defined."""
    global _dry
    launches: list[Launch] = []
    HOOKS.append(launches.append)
    _dry += dry
    try:
        yield launches
    finally:
        _dry -= dry
        HOOKS.remove(launches.append)
