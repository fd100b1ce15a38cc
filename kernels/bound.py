"""Launches bound once: what Triton derives anew for each launch is kept from the first one, which went its own way.

An ordinary launch binds its arguments, looks at each one's type and alignment, prints them into a key, and finds the
compiled kernel by it. Where type, layout and alignment are those of the first launch the answer is the same: then the
compiled kernel's own launcher is called, with the arguments that Triton would have called it with. Anything else (a
pointer off 16 bytes, another device, a hook, a dry run, the interpreter) is launched the ordinary way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel

from fastget.kernels.launch import HOOKS, Traced, dry, launch

ALIGNED = 16  # bytes: what Triton specialises a pointer on


class Bound:
    """One launch, to be made again with other tensors of the same types, layouts and alignment in some places."""

    def __init__(
        self,
        call: Traced,
        given: Sequence[Tensor | None],  # those of its tensors that are others each time; None: absent
        direct: bool,  # whether the compiled kernel's launcher may be called; otherwise always the ordinary way
    ) -> None:
        made = call.launch
        self.kernel, self.options = made.kernel, {"num_warps": made.num_warps, "num_stages": made.num_stages}
        self.grid, self.constexprs, self.direct = made.grid, made.constexprs, direct
        self.reads, self.writes = (_places(made.args, tensors) for tensors in (made.reads, made.writes))
        self.fills = [(i, n) for n, x in enumerate(given) if x is not None for i in _places(made.args, [x])]
        self.args = list(made.args)
        self.start: tuple[Any, ...] = ()  # of the launcher's arguments, around the stream
        self.compiled: Any = None
        self._keep(call.compiled, self.args)
        for i, _ in self.fills:
            self.args[i] = None  # nobody's tensor is held from one step to the next

    def _keep(self, compiled: Any, args: Sequence[Any]) -> None:
        """Bind what the ordinary launch compiled, if it is the one for aligned pointers in the places that change."""
        if not self.direct or not isinstance(compiled, CompiledKernel):  # none, or one that is still being compiled
            return
        if any(args[i].data_ptr() % ALIGNED for i, _ in self.fills):
            return
        place = next(x.device for x in args if isinstance(x, Tensor))
        names = [parameter.name for parameter in self.kernel.params[len(args) :]]
        self.tail = [self.constexprs[name] for name in names]
        self.grid3 = (*self.grid, 1, 1)[:3]
        self.start = (compiled.function, compiled.packed_metadata, None, None, None)  # no hook, so no metadata for one
        here = triton.runtime.driver.active.get_current_device()
        self.device = place.index if place.type == "cuda" else here
        self.run, self.compiled = compiled.run, compiled

    def __call__(self, given: Sequence[Tensor | None], device: int | None, stream: Any) -> None:
        """Launch, with `given` in the places of the first ones. `device` None: the ordinary way."""
        args, pointers = self.args.copy(), 0
        for i, n in self.fills:
            tensor = given[n]
            args[i] = tensor
            pointers |= tensor.data_ptr()  # type: ignore[union-attr]  # one that was there is there
        if self.compiled is None or device != self.device or pointers % ALIGNED or self.kernel.pre_run_hooks:
            self._ordinary(args)
        else:
            self.run(*self.grid3, stream, *self.start, *args, *self.tail)

    def _ordinary(self, args: list[Any]) -> None:
        for i, _ in self.fills:
            args[i] = args[i].detach()  # the interpreter writes to tensors, and a leaf would mind
        reads, writes = ([args[i] for i in places] for places in (self.reads, self.writes))
        compiled = launch(self.kernel, self.grid, *args, reads=reads, writes=writes, **self.options, **self.constexprs)
        if self.compiled is None:
            self._keep(compiled, args)


def bind(
    calls: Sequence[Traced],
    given: Sequence[Tensor | None],  # what is another each time
    direct: bool,
    may_lack: Sequence[Tensor | None] = (),  # and what the launches may do without
) -> list[Bound]:
    """The launches of a trace, to be repeated with other tensors in the order of `given` and `may_lack`."""
    found = [Bound(call, (*given, *may_lack), direct) for call in calls]
    placed = {n for bound in found for _, n in bound.fills}
    lost = [n for n, x in enumerate(given) if x is not None and n not in placed]
    assert not lost, f"tensors {lost} of a trace are not in its launches: a launcher hands on copies of them"
    return found


def repeat(launches: Sequence[Bound], given: Sequence[Tensor | None]) -> None:
    """All launches, in order, on the current stream."""
    device = stream = None
    if launches[0].compiled is not None and not HOOKS and not dry() and not _watched():
        driver = triton.runtime.driver.active
        device = driver.get_current_device()
        stream = driver.get_current_stream(device)
    for bound in launches:
        bound(given, device, stream)


def _watched() -> bool:
    """Whether somebody looks at Triton's launches, or compiles otherwise than at the first one."""
    runtime = knobs.runtime
    if runtime.debug or getattr(runtime, "add_stages_inspection_hook", None) is not None:
        return True
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook  # chains; None in earlier versions
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _places(args: Sequence[Any], tensors: Sequence[Tensor]) -> list[int]:
    """Where in the arguments these very tensors stand."""
    known = {id(x) for x in tensors}
    return [i for i, x in enumerate(args) if isinstance(x, Tensor) and id(x) in known]
