"""What a launch asks for, counted in the interpreter: bytes under true masks, products, exponentials, per program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
from triton.runtime import interpreter

from fastget.kernels.launch import HOOKS, Launch


@dataclass
class Counted:
    """One launch."""

    launch: Launch
    loads: int = 0  # bytes
    stores: int = 0
    multiply_adds: int = 0
    special: int = 0  # exponentials and logarithms, of whole tiles
    dots: Counter[tuple[int, ...]] = field(default_factory=Counter)  # program -> its products


def _bytes(pointers: Any, mask: Any) -> int:
    lanes = np.broadcast_to(mask.data, pointers.data.shape)
    width = interpreter._get_np_dtype(pointers.get_element_ty()).itemsize
    return int(lanes.sum()) * int(width)


@contextmanager
def counting() -> Iterator[list[Counted]]:
    """The launches made inside the block, with what they asked for."""
    found: list[Counted] = []
    builder = interpreter.interpreter_builder
    load, store, dot = builder.create_masked_load, builder.create_masked_store, builder.create_dot
    exp, log = builder.create_exp, builder.create_log

    def masked_load(ptrs: Any, mask: Any, *rest: Any) -> Any:
        found[-1].loads += _bytes(ptrs, mask)
        return load(ptrs, mask, *rest)

    def masked_store(ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        found[-1].stores += _bytes(ptrs, mask)
        return store(ptrs, value, mask, *rest)

    def one_dot(a: Any, b: Any, *rest: Any) -> Any:
        (m, k), n = a.data.shape, b.data.shape[1]
        found[-1].multiply_adds += m * n * k
        found[-1].dots[tuple(builder.grid_idx)] += 1
        return dot(a, b, *rest)

    def counted(function: Any) -> Any:
        def run(x: Any, *rest: Any) -> Any:
            found[-1].special += x.data.size
            return function(x, *rest)

        return run

    def begin(launch: Launch) -> None:
        found.append(Counted(launch))

    HOOKS.append(begin)
    try:
        with patch.multiple(builder, create_masked_load=masked_load, create_masked_store=masked_store,
                            create_dot=one_dot, create_exp=counted(exp), create_log=counted(log)):  # fmt: skip
            yield found
    finally:
        HOOKS.remove(begin)
