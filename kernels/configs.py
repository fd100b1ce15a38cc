"""Block sizes: plain tables, chosen from the shape and the type, or by a table that `fastget tune` found on a card.

Every entry compiles without spills for sm_80, sm_90 and sm_100, and stays within the shared memory of each
architecture that `python -m fastget.kernels.audit.report` lists. BLOCK_B is always of the batch's rows, BLOCK_C of the
classes, BLOCK_D of the width, BLOCK_K of an axis that is summed over; `launch(..., **vars(tile))` hands a configuration
on. The sizes are those that kernels/audit/model.py finds fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One configuration of a kernel with a matrix product over one of the three axes."""

    BLOCK_B: int
    BLOCK_C: int
    BLOCK_D: int
    PRECISION: str  # of a tl.dot
    num_warps: int
    num_stages: int = 2


@dataclass(frozen=True, kw_only=True)
class Gradient(Tile):
    """One configuration of kernels/backward.py: tiles of (B, D) and of (C, D), the third axis BLOCK_K at a time."""

    BLOCK_K: int


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One configuration of a kernel on (B, C) matrices."""

    BLOCK_B: int
    BLOCK_C: int
    num_warps: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The configuration of kernels/memory.py: tiles of (C, D), and all of (C,) in one program."""

    ALL_C: int
    BLOCK_C: int
    BLOCK_D: int
    num_warps: int


# --- what a choice depends on beside the shape --------------------------------------------------

LARGE = 163_840  # bytes of shared memory that a block may use on a card of large tiles: sm_80, sm_90, sm_100
Config = Tile | Rows | Memory
Table = Mapping[tuple[str, int, int, int, str], Config]  # (kernel, B, C, D, precision) -> what a card does best with
C_ = TypeVar("C_", bound=Config)


@dataclass(frozen=True)
class Choice:
    """What is chosen for everybody. None: as torch, the card and the rules below have it."""

    precision: str | None = None  # of the products
    room: bool | None = None  # whether tiles may be large
    table: Table | None = None  # configurations that go before the rules


_choice = Choice()  # no ContextVar: autograd runs the backward launch in a thread of its own, which would not see it


def use(**changes: Any) -> Choice:
    """Change the choice; what it was."""
    global _choice
    before, _choice = _choice, replace(_choice, **changes)
    return before


@contextmanager
def choosing(**changes: Any) -> Iterator[None]:
    """use() for as long as the block runs: how the catalogue reaches what other machines choose."""
    before = use(**changes)
    try:
        yield
    finally:
        use(**vars(before))


def precision(*tensors: Tensor) -> str:
    """How products beside `tensors`, features first, are made.

    "bf16" for bfloat16 features: both sides in bfloat16, summed in float32, as autocast multiplies. float16 has not
    float32's range, which prototypes and slopes need, and is exact in TF32: beside it the float32 side is rounded to
    "tf32", to no fewer bits than float16 has. float32 follows torch.get_float32_matmul_precision(). ROCm has no TF32 on
    every card and multiplies float32 in its matrix cores: "ieee".
    """
    if _choice.precision:
        return _choice.precision
    if tensors[0].dtype == torch.bfloat16:
        return "bf16"
    if torch.version.hip is not None:
        return "ieee"
    if any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors):
        return "tf32"
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def slope_precision(*tensors: Tensor) -> str:
    """The same for a slope that is given, whose roundings nobody has chosen: never coarser than TF32."""
    found = precision(*tensors)
    return found if found != "bf16" else "ieee" if torch.version.hip is not None else "tf32"


@cache
def _shared_memory(device: int) -> int:
    """Bytes that a block may use on a CUDA or ROCm device."""
    properties: Any = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0))


def large() -> bool:
    """Whether the current device has room for large tiles. Without one: yes, as the cards have that train."""
    if _choice.room is not None:
        return _choice.room
    return not torch.cuda.is_available() or _shared_memory(torch.cuda.current_device()) >= LARGE


def _tuned(kernel: str, shape: tuple[int, int, int], precision: str, otherwise: C_) -> C_:
    """The table's entry, or `otherwise`."""
    found = (_choice.table or {}).get((kernel, *shape, precision))
    return found if isinstance(found, type(otherwise)) else otherwise


def from_dict(kernel: str, values: dict[str, Any]) -> Config:
    """A table's configuration as a file has it; ValueError or TypeError for one that is none."""
    kinds: dict[str, Config] = {
        "logits": Tile(BLOCK_B=16, BLOCK_C=16, BLOCK_D=16, PRECISION="tf32", num_warps=4),
        "backward": Gradient(BLOCK_B=16, BLOCK_C=16, BLOCK_D=16, BLOCK_K=16, PRECISION="tf32", num_warps=4),
    }
    if kernel not in kinds:
        raise ValueError(f"expected one of {', '.join(kinds)}, got {kernel!r}")
    blank = vars(kinds[kernel])
    if set(values) != set(blank) or any(type(values[name]) is not type(blank[name]) for name in blank):
        raise ValueError(f"expected the fields {', '.join(blank)}, got {values}")
    return type(kinds[kernel])(**values)


# --- the kernels of a step ----------------------------------------------------------------------


def logits(B: int, C: int, D: int, precision: str) -> Tile:
    """kernels/logits.py. Small batches take small tiles, so that more programs share the prototypes."""

    def tile(BLOCK_B: int, BLOCK_C: int, BLOCK_D: int, num_warps: int, num_stages: int = 2) -> Tile:
        return Tile(BLOCK_B=BLOCK_B, BLOCK_C=BLOCK_C, BLOCK_D=BLOCK_D, PRECISION=precision, num_warps=num_warps,
                    num_stages=num_stages)  # fmt: skip

    if precision == "ieee":
        rule = tile(32, 32, 16, 8) if B > 512 else tile(16, 64, 16, 8) if C > 1024 else tile(16, 32, 16, 4)
    elif precision != "bf16" or not large():
        rule = tile(32, 64, 32, 8) if B > 512 else tile(16, 64, 32, 8) if C > 1024 else tile(16, 32, 32, 4)
    elif B > 512:
        rule = tile(128, 32, 32, 8, 4)
    elif B > 64:
        rule = tile(64, 32, 64, 4, 4) if D > 512 else tile(32, 32, 64, 4, 4)
    else:
        rule = tile(16, 32, 64, 4, 4)
    return _tuned("logits", (B, C, D), precision, rule)


def columns(B: int, C: int) -> Rows:
    """Sums over the batch, a block of classes a program."""
    return Rows(BLOCK_B=64 if B <= 64 else 256, BLOCK_C=16, num_warps=8) if C <= 1024 else Rows(
        BLOCK_B=64, BLOCK_C=64, num_warps=8)  # fmt: skip


def memory(C: int) -> Memory:
    """kernels/memory.py. Whoever has all of the prior holds it at once, without a loop."""
    return Memory(ALL_C=max(64, 1 << (C - 1).bit_length()), BLOCK_C=32, BLOCK_D=128, num_warps=8 if C <= 4096 else 16)


def class_sums(B: int, C: int, D: int, dtype: torch.dtype) -> Tile:
    """onehot^T @ features. float32 features must not be rounded; half types are exact in any product."""
    BLOCK_B, BLOCK_C, BLOCK_D, num_stages = 32, 32, 128, 2
    if dtype != torch.float32 and large():
        BLOCK_B, num_stages = 64, 3
        BLOCK_C, BLOCK_D = (128, 64) if B > 512 else (32, 128)
    return Tile(BLOCK_B=BLOCK_B, BLOCK_C=BLOCK_C, BLOCK_D=BLOCK_D, PRECISION="ieee", num_warps=8, num_stages=num_stages)


def backward(B: int, C: int, D: int, precision: str) -> Gradient:
    """kernels/backward.py: tiles of (B, D) and of (C, D), each summed over the third axis."""

    def tile(B: int, C: int, D: int, K: int, num_warps: int = 8, num_stages: int = 2) -> Gradient:
        return Gradient(BLOCK_B=B, BLOCK_C=C, BLOCK_D=D, BLOCK_K=K, PRECISION=precision, num_warps=num_warps,
                        num_stages=num_stages)  # fmt: skip

    if precision == "ieee":
        rule = tile(32, 32, 64, 16)
    elif precision != "bf16" or not large():
        rule = tile(64, 64, 64, 32) if B > 512 else tile(32, 32, 64, 32)
    elif B > 512 or D > 512:
        rule = tile(128, 128, 128, 32, 8, 3)
    else:
        rule = tile(32, 32, 64, 64, 4, 4)
    return _tuned("backward", (B, C, D), precision, rule)


def objective(B: int, C: int) -> Rows:
    """kernels/objective.py: at most about 128 blocks of rows up to 32,768 rows, so that partials stay few."""
    if B <= 512:
        return Rows(BLOCK_B=4, BLOCK_C=64 if C <= 64 else 512, num_warps=8)
    if B <= 4096:
        return Rows(BLOCK_B=32, BLOCK_C=64, num_warps=8)
    return Rows(BLOCK_B=256, BLOCK_C=16, num_warps=8)


def totals(B: int, C: int) -> Rows:
    """The programs that add up what the blocks of rows left: BLOCK_B blocks at a time."""
    if B > 512 and C > 512:
        return Rows(BLOCK_B=64, BLOCK_C=512, num_warps=16)
    return Rows(BLOCK_B=64 if B > 64 else 32, BLOCK_C=64 if C <= 64 else 256, num_warps=8)


# --- the equations by themselves ----------------------------------------------------------------


def walk(C: int) -> Rows:
    """Kernels whose programs walk along rows."""
    return Rows(BLOCK_B=4, BLOCK_C=64 if C <= 64 else 512, num_warps=4)
