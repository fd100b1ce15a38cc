"""Triton's interpreter, mended where it computes bfloat16 differently from a card: it cuts float32 off, where a card
rounds to the nearest, and multiplies and converts the 16 bits of bfloat16 as an integer. Not part of what is compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl


def to_bfloat16(x: Any) -> Any:
    """float32 -> the bits of the nearest bfloat16, ties to even; a NaN stays one."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (bits >> 16) | 0x40, nearest).astype(np.uint16)


def mend() -> None:
    """Change the interpreter of this process, once."""
    from triton.runtime import interpreter

    class Builder(interpreter.InterpreterBuilder):  # type: ignore[misc]  # untyped
        def cast_impl(self, src: Any, dst_type: Any) -> Any:
            old, new = src.dtype.scalar, dst_type.scalar
            if old == new or tl.bfloat16 not in (old, new):
                return super().cast_impl(src, dst_type)
            if old == tl.bfloat16:
                wide = (src.data.astype(np.uint32) << 16).view(np.float32)
                return super().cast_impl(interpreter.TensorHandle(wide, tl.float32), dst_type)
            return interpreter.TensorHandle(to_bfloat16(src.data.astype(np.float32)), tl.bfloat16)

        def create_dot(self, a: Any, b: Any, d: Any, *args: Any) -> Any:
            a, b = (self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
            return super().create_dot(a, b, d, *args)

    if type(interpreter.interpreter_builder) is interpreter.InterpreterBuilder:
        interpreter.interpreter_builder.__class__ = Builder
