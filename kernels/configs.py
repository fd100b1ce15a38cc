"""Block sizes: plain tables, chosen from the shape and the type. No tuning at run time.

Every entry compiles without spills for sm_80, sm_90 and sm_100, and stays within the shared memory of each
architecture that `python -m fastget.kernels.audit.report` lists. BLOCK_B is always of the batch's rows, BLOCK_C of the
classes, BLOCK_D of the width; `launch(..., **vars(tile))` hands a configuration on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One configuration of a kernel with a matrix product over one of the three axes."""

    BLOCK_B: int
    BLOCK_C: int
    BLOCK_D: int
    PRECISION: str  # of a float32 tl.dot
    num_warps: int
    num_stages: int = 2


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One configuration of a kernel on (B, C) matrices."""

    BLOCK_B: int
    BLOCK_C: int
    num_warps: int


@dataclass(frozen=True, kw_only=True)
class Width:
    """One configuration of a kernel on (C, D) matrices."""

    BLOCK_C: int
    BLOCK_D: int
    num_warps: int


_forced: list[str] = []  # "ieee" or "tf32", set by forced_precision()


def precision(*tensors: Tensor) -> str:
    """input_precision of tl.dot: what torch.get_float32_matmul_precision() asks of float32, TF32 beside a half type.

    A half-precision number is exact in TF32, so only the float32 side is rounded there, to no fewer bits than the half
    type has. ROCm has no TF32 on every card and multiplies float32 in its matrix cores: always "ieee".
    """
    if _forced:
        return _forced[-1]
    if torch.version.hip is not None:
        return "ieee"
    if any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors):
        return "tf32"
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def mode() -> tuple[str, ...]:
    """All that a configuration depends on beside shapes and types."""
    return (torch.get_float32_matmul_precision(), *_forced)


@contextmanager
def forced_precision(value: str) -> Iterator[None]:
    """Use `value` whatever torch says: how the catalogue reaches what every backend chooses."""
    _forced.append(value)
    try:
        yield
    finally:
        _forced.pop()


def logits(B: int, C: int, precision: str) -> Tile:
    """kernels/logits.py. Small batches take small tiles, so that more programs share the prototypes."""
    if B > 512:
        BLOCK_B, BLOCK_C, num_warps = 32, 32 if precision == "ieee" else 64, 8
    else:
        BLOCK_B, BLOCK_C, num_warps = (16, 64, 8) if C > 1024 else (16, 32, 4)
    BLOCK_D = 16 if precision == "ieee" else 32
    return Tile(BLOCK_B=BLOCK_B, BLOCK_C=BLOCK_C, BLOCK_D=BLOCK_D, PRECISION=precision, num_warps=num_warps)


def columns(C: int) -> Rows:
    """Sums over the batch, a block of classes a program."""
    return Rows(BLOCK_B=64, BLOCK_C=16 if C <= 1024 else 64, num_warps=8)


def prototypes() -> Width:
    """Kernels that map a (C, D) matrix tile by tile."""
    return Width(BLOCK_C=32, BLOCK_D=128, num_warps=8)


def class_sums() -> Tile:
    """onehot^T @ features. float32 features must not be rounded."""
    return Tile(BLOCK_B=32, BLOCK_C=32, BLOCK_D=128, PRECISION="ieee", num_warps=8)


def backward(B: int, precision: str) -> Tile:
    """kernels/backward.py: tiles of (B, D) and of (C, D), each summed over the third axis."""
    BLOCK_B, BLOCK_C = (32, 16) if precision == "ieee" else (64, 32) if B > 512 else (32, 32)
    return Tile(BLOCK_B=BLOCK_B, BLOCK_C=BLOCK_C, BLOCK_D=64, PRECISION=precision, num_warps=8)


def objective(B: int, C: int) -> Rows:
    """kernels/objective.py: at most about 128 blocks of rows up to 32,768 rows, so that partials stay few."""
    if B <= 512:
        return Rows(BLOCK_B=4, BLOCK_C=64 if C <= 64 else 512, num_warps=4)
    if B <= 4096:
        return Rows(BLOCK_B=32, BLOCK_C=64, num_warps=8)
    return Rows(BLOCK_B=256, BLOCK_C=16, num_warps=8)


def totals(C: int) -> Rows:
    """The one program that adds up what the blocks of rows left: BLOCK_B blocks at a time."""
    return Rows(BLOCK_B=32, BLOCK_C=64 if C <= 64 else 256, num_warps=8)


def prior_block(C: int) -> int:
    """Classes at a time where one program walks over the whole prior."""
    return 64 if C <= 64 else 1024


def elementwise(C: int) -> Rows:
    """Kernels that map a (B, C) matrix tile by tile."""
    return Rows(BLOCK_B=8, BLOCK_C=64 if C <= 64 else 256, num_warps=4)


def walk(C: int) -> Rows:
    """Kernels whose programs walk along rows."""
    return Rows(BLOCK_B=4, BLOCK_C=64 if C <= 64 else 512, num_warps=4)
