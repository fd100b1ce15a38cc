"""Every kernel in every configuration that a launcher can choose, as the JIT would specialise it.

The launchers themselves are driven in a dry run over shapes that reach every entry of the tables in configs.py, so
the catalogue cannot drift from what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.launch import Launch, record

HALF = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALF)
POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
}

# (B, C, D): each reaches other entries of the tables; odd sizes lose the alignment that even ones have.
SHAPES = ((36, 65, 256), (256, 345, 2048), (4096, 1000, 2048), (37, 5000, 257), (64, 64, 256))
FAST_SHAPE = (256, 345, 2048)


@dataclass(frozen=True)
class Variant:
    """One compilation: ASTSource(kernel, signature, constexprs, attrs) with num_warps and num_stages."""

    name: str  # kernel, type, sizes: unique
    kernel: Any  # the object that @triton.jit made
    signature: dict[str, str]  # argument -> Triton type, "constexpr" for those in `constexprs`
    constexprs: dict[str, Any]
    attrs: dict[tuple[int, ...], list[list[Any]]]  # tt.divisibility, as the JIT would specialise
    num_warps: int
    num_stages: int
    dtype: torch.dtype  # of the features
    backends: tuple[str, ...]  # "cuda", "hip": where this precision exists and can be chosen
    fast: bool = field(compare=False)  # in the small subset that covers every kernel


def specialise(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int, ...], list[list[Any]]]]:
    """Signature, constexprs and attributes of a launch: integers equal to 1 are constants, multiples of 16 are said."""
    signature: dict[str, str] = {}
    constexprs: dict[str, Any] = dict(launch.constexprs)
    attrs: dict[tuple[int, ...], list[list[Any]]] = {}
    names = launch.kernel.arg_names
    for i, (name, value) in enumerate(zip(names, launch.args, strict=False)):
        divisible = False
        if isinstance(value, Tensor):
            signature[name] = POINTERS[value.dtype]
            address = value.storage_offset() * value.element_size()
            divisible = (address + (0 if value.device.type == "meta" else value.data_ptr() - address)) % 16 == 0
        elif isinstance(value, int) and value != 1:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            divisible = value % 16 == 0
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name], constexprs[name] = "constexpr", value
        if divisible:
            attrs[(i,)] = [["tt.divisibility", 16]]
    signature.update({name: "constexpr" for name in names[len(launch.args) :]})
    return signature, constexprs, attrs


def variants(dtypes: Sequence[torch.dtype] = DTYPES) -> Iterator[Variant]:
    """Every variant once, in a fixed order."""
    seen: set[Any] = set()
    for dtype in dtypes:
        for precision in ("ieee", "tf32"):
            backends = _backends(dtype, precision)
            for shape in SHAPES:
                for drive in drives():
                    with record(dry=True) as launches, configs.forced_precision(precision):
                        drive(dtype, *shape)
                    for launch in launches:
                        variant = _variant(launch, dtype, backends, shape)
                        key = _key(variant)
                        if key not in seen:
                            seen.add(key)
                            yield variant


def _backends(dtype: torch.dtype, precision: str) -> tuple[str, ...]:
    """Where configs.precision() can choose this: half types multiply in TF32 on CUDA, ROCm always in full."""
    if precision == "tf32":
        return ("cuda",)
    return ("hip",) if dtype in HALF else ("cuda", "hip")


def _variant(launch: Launch, dtype: torch.dtype, backends: tuple[str, ...], shape: tuple[int, int, int]) -> Variant:
    signature, constexprs, attrs = specialise(launch)
    constexprs["UPCAST"] = False if "UPCAST" in constexprs else None
    if constexprs["UPCAST"] is None:
        del constexprs["UPCAST"]
    kind = str(dtype).removeprefix("torch.")
    choices = ",".join(f"{k}={_short(v)}" for k, v in launch.constexprs.items() if k != "UPCAST")
    uses_dot = "PRECISION" in constexprs
    return Variant(
        name=f"{launch.name}[{kind} {'x'.join(map(str, shape))} {choices}]",
        kernel=launch.kernel,
        signature=signature,
        constexprs=constexprs,
        attrs=attrs,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        dtype=dtype,
        backends=backends if uses_dot else ("cuda", "hip"),
        fast=shape == FAST_SHAPE and dtype in (torch.float32, torch.bfloat16),
    )


def _short(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _key(variant: Variant) -> Any:
    return (
        variant.kernel.fn.__name__,
        tuple(variant.signature.items()),
        tuple(variant.constexprs.items()),
        tuple(variant.attrs),
        variant.num_warps,
        variant.num_stages,
    )


def drives() -> list[Callable[[torch.dtype, int, int, int], None]]:
    """Functions of (features' dtype, B, C, D) that together call every launcher with every option."""
    return []
