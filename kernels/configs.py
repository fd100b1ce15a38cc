"""Block sizes: plain tables, chosen from the shape and the type. No tuning at run time.

Every entry compiles without spills for sm_80, sm_90 and sm_100, and stays within the shared memory of each
architecture that `python -m fastget.kernels.audit.report` lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One configuration of a kernel with a matrix product: BM x BN of the result, BK of the summed axis at a time."""

    BM: int
    BN: int
    BK: int
    precision: str  # of a float32 tl.dot
    num_warps: int
    num_stages: int


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One configuration of a kernel that walks along rows: BM rows, BN columns at a time."""

    BM: int
    BN: int
    num_warps: int


_forced: list[str] = []  # "float64", "ieee" or "tf32", set by forced_precision()


def precision(*tensors: Tensor) -> str:
    """input_precision of tl.dot: what torch.get_float32_matmul_precision() asks of float32, TF32 beside a half type.

    A half-precision number is exact in TF32, so only the float32 side is rounded there, to more bits than the half
    type has. ROCm has no TF32 on every card and multiplies float32 in its matrix cores: always "ieee".
    """
    if _forced:
        return "ieee" if _forced[-1] == "float64" else _forced[-1]
    if torch.version.hip is not None:
        return "ieee"
    if any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors):
        return "tf32"
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def wide(*tensors: Tensor) -> bool:
    """Whether products are summed in float64: float32 throughout, and "highest" asked for.

    A cosine of float32 is off by 1e-7, which 1 / tau magnifies: at tau 0.01 P would be off by more than 1e-6.
    """
    highest = _forced[-1] == "float64" if _forced else torch.get_float32_matmul_precision() == "highest"
    return highest and all(t.dtype == torch.float32 for t in tensors)


@contextmanager
def forced_precision(value: str) -> Iterator[None]:
    """Use `value` ("float64": "ieee" summed in it) whatever torch says: how the catalogue reaches every backend's."""
    _forced.append(value)
    try:
        yield
    finally:
        _forced.pop()


def logits(B: int, C: int, precision: str) -> Tile:
    """Tiles of kernels/logits.py. Small batches take small tiles, so that more programs share the prototypes."""
    large = B > 512
    if precision == "ieee":
        BM, BN, BK, num_warps = (32, 32, 16, 8) if large else (16, 64, 16, 8) if C > 1024 else (16, 32, 16, 4)
    else:
        BM, BN, BK, num_warps = (32, 64, 32, 8) if large else (16, 64, 32, 8) if C > 1024 else (16, 32, 32, 4)
    return Tile(BM=BM, BN=BN, BK=BK, precision=precision, num_warps=num_warps, num_stages=2)


LABEL_ROWS = 128  # rows whose y_M one program writes


def columns(C: int) -> Rows:
    """The column sums of kernels/statistics.py: BN classes over all rows, BM rows at a time."""
    return Rows(BM=64, BN=16 if C <= 1024 else 64, num_warps=8)


def class_sums() -> Tile:
    """One-hot^T @ features: BM classes, BN of the width, BK rows at a time. float32 features must not be rounded."""
    return Tile(BM=32, BN=128, BK=32, precision="ieee", num_warps=8, num_stages=2)


def backward(B: int, precision: str) -> Tile:
    """Tiles of kernels/backward.py: BM rows or classes, BN of the width, BK of the axis that is summed."""
    if precision == "ieee":
        return Tile(BM=32, BN=64, BK=16, precision=precision, num_warps=8, num_stages=2)
    if B > 512:
        return Tile(BM=64, BN=64, BK=16, precision=precision, num_warps=8, num_stages=2)
    return Tile(BM=32, BN=64, BK=32, precision=precision, num_warps=8, num_stages=2)


def objective(B: int, C: int) -> Rows:
    """Rows of kernels/objective.py: at most about 128 blocks of them up to 32,768 rows, so that partials stay few."""
    if B <= 512:
        return Rows(BM=4, BN=64 if C <= 64 else 512, num_warps=4)
    if B <= 4096:
        return Rows(BM=32, BN=64, num_warps=8)
    return Rows(BM=256, BN=16, num_warps=8)


def totals(C: int) -> Rows:
    """The one program that adds up the blocks of kernels/objective.py."""
    return Rows(BM=32, BN=64 if C <= 64 else 256, num_warps=8)


def prior_tile(C: int) -> int:
    """Classes at a time where one program walks over the whole prior."""
    return 64 if C <= 64 else 1024


def elementwise(C: int) -> Rows:
    """Kernels that map a (B, C) matrix tile by tile."""
    return Rows(BM=8, BN=64 if C <= 64 else 256, num_warps=4)


def walk(C: int) -> Rows:
    """Kernels whose programs walk along rows: BM rows, BN columns at a time."""
    return Rows(BM=4, BN=64 if C <= 64 else 512, num_warps=4)
