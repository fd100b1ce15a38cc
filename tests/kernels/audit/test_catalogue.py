"""The catalogue against what really runs."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fastget.kernels
from fastget.kernels.audit.catalogue import DRIVES, Variant, _variant, specialise, variants
from fastget.kernels.audit.step import launches_of
from fastget.kernels.launch import compile_options, record
from tests.kernels.audit.selections import extremes, tiles


def jitted() -> set[str]:
    """Every kernel in the package: decorated, and named as one that is launched."""
    names = set()
    for module in pkgutil.walk_packages(fastget.kernels.__path__, "fastget.kernels."):
        members = vars(importlib.import_module(module.name))
        names |= {k for k, v in members.items() if k.endswith("_kernel") and hasattr(v, "arg_names")}
    return names


def test_every_kernel_once_and_in_the_fast_subset() -> None:
    found = list(variants((torch.float32, torch.bfloat16)))
    assert {v.kernel.fn.__name__ for v in found} == jitted()
    assert {v.kernel.fn.__name__ for v in found if v.fast} == jitted()
    assert len({v.name + str(v.signature) + str(v.attrs) for v in found}) == len(found)
    assert sum(v.fast for v in found) < len(found) / 3
    for v in found:
        assert list(v.signature) == list(v.kernel.arg_names), v.name
        assert {k for k, kind in v.signature.items() if kind == "constexpr"} == set(v.constexprs), v.name


@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_what_runs_is_in_it(recipe: str) -> None:
    known = {(v.kernel.fn.__name__, tuple(sorted(map(str, v.constexprs.items())))) for v in variants((torch.float32,))}
    launches = launches_of(64, 64, 256, recipe=recipe)
    assert len(launches) == 6
    for launch in launches:
        constexprs = specialise(launch)[1]
        assert (launch.name, tuple(sorted(map(str, constexprs.items())))) in known, launch.name


def test_selections_leave_out_no_configuration() -> None:
    found = list(variants((torch.float32, torch.bfloat16)))
    kept = extremes(found)

    def options(v: Variant) -> tuple[Any, ...]:
        return v.kernel.fn.__name__, str(v.signature), str(v.constexprs), v.num_warps

    def sizes(v: Variant) -> tuple[Any, ...]:
        blocks = [f"{kind}_{axis}" for kind in ("BLOCK", "SUMS", "ALL") for axis in "BCD"]
        chosen = {k: v.constexprs.get(k) for k in (*blocks, "PRECISION")}
        return v.kernel.fn.__name__, str(chosen), v.num_warps, str([t for t in v.signature.values() if t[0] == "*"])

    assert {options(v) for v in kept} == {options(v) for v in found}
    for v in found:
        same = [len(k.attrs) for k in kept if options(k) == options(v)]
        assert min(same) <= len(v.attrs) <= max(same)
    assert {sizes(v) for v in tiles(found)} == {sizes(v) for v in found}


def count_differences() -> tuple[int, int]:
    """Arguments over some steps, and those of which Triton's own binder says something else than the catalogue does."""
    from triton.backends.amd.compiler import HIPBackend
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime.jit import create_function_from_signature

    cuda, hip = CUDABackend(GPUTarget("cuda", 90, 32)), HIPBackend(GPUTarget("hip", "gfx942", 64))
    total = different = 0
    for shape in ((64, 64, 256), (37, 65, 257), (1, 2, 1)):
        with record(dry=True) as launches:
            for drive in DRIVES:
                drive(torch.bfloat16, *shape)
        for launch in launches:
            variant = _variant(launch, torch.bfloat16, ("cuda", "hip"), True, shape)
            for name, backend in (("cuda", cuda), ("hip", hip)):
                binder = create_function_from_signature(launch.kernel.signature, launch.kernel.params, backend)
                options = compile_options(launch.num_warps, launch.num_stages, name)
                bound, specialised, _ = binder(*launch.args, **options, **launch.constexprs)
                attrs = variant.attrs_for(name)
                for i, (argument, (kind, hint)) in enumerate(zip(bound, specialised, strict=True)):
                    total += 1
                    said = backend.parse_attr(hint) if kind != "constexpr" and hint else []
                    different += (kind, said) != (variant.signature[argument], attrs.get((i,), []))
    return total, different


def test_specialised_as_the_jit_does() -> None:
    code = "from tests.kernels.audit.test_catalogue import count_differences; print(*count_differences())"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3], env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    total, different = map(int, out.stdout.split())
    assert total > 1000
    assert different == 0
