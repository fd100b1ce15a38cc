"""Every kernel in every configuration compiles, and what the compiler made of it keeps the claims.

The kernels of a test run are the interpreter's, so the compiling is done by this file run as a program without
TRITON_INTERPRET: `python -m tests.kernels.audit.test_compile samples|fast|bfloat16|extremes|tiles [architectures]`
prints a row per variant. Every variant on every architecture is `python -m fastget.kernels.audit.report`: some two
hours on two cores.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import triton
import triton.language as tl

from fastget.kernels import launch
from fastget.kernels.audit import compile as kc
from fastget.kernels.audit.catalogue import Variant, variants
from tests.kernels.audit.selections import extremes, tiles

ROOT = Path(__file__).parents[3]
FAST_ARCHITECTURES = ("sm_80", "sm_90")


@triton.jit
def _spilling(x, y, BLOCK: tl.constexpr, FOLD: tl.constexpr):
    """Holds BLOCK values per program at once: too many for one warp."""
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at)
    for i in range(FOLD):
        values = values * tl.sum(values, 0) + tl.load(x + i * BLOCK + at)
    tl.store(y + at, values)


@triton.jit
def _atomic(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(y, tl.sum(tl.load(x + at), 0))


@triton.jit
def _product(x, y, BLOCK: tl.constexpr, COPIES: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    product = tl.zeros((BLOCK, BLOCK), tl.float32)
    for i in range(COPIES):
        tile = tl.load(x + i * BLOCK * BLOCK + at)
        product = tl.dot(tile, tile, product)
    tl.store(y + at, product)


@triton.jit
def _squares(x, y, BLOCK: tl.constexpr):
    """Broken where a product and an add may be fused: each lane adds its own square to the rounded one of another."""
    values = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y, tl.sum(values * values, 0))


@triton.jit
def _wrong(x, y, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), tl.load(x + tl.arange(0, 2 * BLOCK)))  # shapes that do not fit


def _sample(name: str, kernel: Any, signature: dict[str, str], num_warps: int = 4, **constexprs: int) -> Variant:
    half = "*bf16" in signature.values()
    return Variant(
        name=name,
        kernel=kernel,
        signature={**signature, **dict.fromkeys(constexprs, "constexpr")},
        constexprs=constexprs,
        attrs={(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]},
        small=(0, 1),
        num_warps=num_warps,
        num_stages=8,
        dtype=torch.bfloat16 if half else torch.float32,
        backends=("cuda", "hip"),
        rooms=(False, True),
        fast=True,
    )


def _samples() -> list[Variant]:
    row, tile = {"x": "*fp32", "y": "*fp32"}, {"x": "*bf16", "y": "*fp32"}
    return [
        _sample("spilling", _spilling, row, num_warps=1, BLOCK=32768, FOLD=1),
        _sample("atomic", _atomic, row, BLOCK=256),
        _sample("product", _product, tile, BLOCK=32, COPIES=4),
        _sample("large", _product, tile, BLOCK=128, COPIES=64),
        _sample("wrong", _wrong, row, BLOCK=16),
        _sample("squares", _squares, row, num_warps=1, BLOCK=32),
        _sample("fused", _squares, row, num_warps=1, BLOCK=32),
    ]


def _compile(what: str, archs: tuple[str, ...]) -> list[kc.Resources]:
    """The rows that this file prints when it is run as a program."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.audit.test_compile", what, *archs]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [kc.Resources(**row) for row in json.loads(done.stdout)]


def _thin(chosen: list[Variant], most: int) -> list[Variant]:
    """At most so many of each kernel and type, spread evenly over its configurations."""
    groups: dict[tuple[str, torch.dtype], list[Variant]] = {}
    for variant in chosen:
        groups.setdefault((variant.kernel.fn.__name__, variant.dtype), []).append(variant)
    return [
        group[i * len(group) // min(most, len(group))]
        for group in groups.values()
        for i in range(min(most, len(group)))
    ]


def _main(what: str, archs: list[str]) -> None:
    if what == "samples":
        rows = []
        for sample in _samples():
            with patch.object(launch, "FP_FUSION", sample.name == "fused"):
                rows += [kc.inspect_variant(sample, arch) for arch in archs]
    elif what == "fast":  # on one core, in the time of an ordinary test run
        rows = list(kc.inspect_all(_thin([v for v in variants() if v.fast], most=3), archs, jobs=1))
    elif what == "bfloat16":
        chosen = [v for v in variants((torch.bfloat16,)) if "PRECISION" in v.constexprs and False in v.rooms]
        chosen = [v for v in chosen if v.fast and "hip" in v.backends]
        rows = list(kc.inspect_all(_thin(chosen, most=1), archs, jobs=1))
    else:
        rows = list(kc.inspect_all({"extremes": extremes, "tiles": tiles}[what](list(variants())), archs))
    print(json.dumps([asdict(row) for row in rows]))


# --- the reading can fail: kernels that break each claim ----------------------------------------


@pytest.fixture(scope="module")
def samples() -> dict[tuple[str, str], kc.Resources]:
    return {(r.variant, r.arch): r for r in _compile("samples", ("sm_80", "sm_90", "gfx942"))}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_spill_is_seen(samples: dict[tuple[str, str], kc.Resources], arch: str) -> None:
    row = samples["spilling", arch]
    assert row.stack > 0
    assert row.spills > 0
    assert any("spills" in claim for claim in row.broken_claims())


def test_a_spill_is_seen_on_amd(samples: dict[tuple[str, str], kc.Resources]) -> None:
    assert samples["spilling", "gfx942"].spills > 0
    assert samples["product", "gfx942"].spills == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
def test_an_atomic_is_seen(samples: dict[tuple[str, str], kc.Resources], arch: str) -> None:
    row = samples["atomic", arch]
    assert row.atomics
    assert any("atomics, whose sum depends on the order" in claim for claim in row.broken_claims())
    assert not samples["product", arch].atomics


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
def test_a_matrix_instruction_is_seen(samples: dict[tuple[str, str], kc.Resources], arch: str) -> None:
    row = samples["product", arch]
    assert row.dots.endswith("/bf16")
    assert "MMA" in row.mma.upper() or "mfma" in row.mma
    assert row.broken_claims() == []
    assert not samples["atomic", arch].mma
    without = kc.Resources(**{**asdict(row), "mma": ""})
    assert any("without a matrix instruction" in claim for claim in without.broken_claims())


def test_too_much_shared_memory_is_seen(samples: dict[tuple[str, str], kc.Resources]) -> None:
    row = samples["large", "sm_80"]
    assert row.shared > row.shared_limit == 166_912
    assert any("shared memory" in claim for claim in row.broken_claims())
    assert row.occupancy == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_product_fused_into_a_sum_over_lanes_is_seen(samples: dict[tuple[str, str], kc.Resources], arch: str) -> None:
    assert any("differ in the last bit" in claim for claim in samples["fused", arch].broken_claims())
    assert samples["squares", arch].broken_claims() == [], "as every launch of the kernels is compiled"


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
def test_a_kernel_that_does_not_compile_is_seen(samples: dict[tuple[str, str], kc.Resources], arch: str) -> None:
    assert "does not compile" in samples["wrong", arch].broken_claims()[0]


def test_taking_tensor_memory_is_no_atomic_of_the_kernel() -> None:
    """tcgen05.alloc becomes ATOMS.AND and ATOMS.OR on sm_100; beside an atomic of the program's own all are shown."""
    found, alloc = ["ATOMS.AND", "ATOMS.OR"], "\ttcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 128;\n"
    assert kc.without_allocation(found, alloc) == []
    assert kc.without_allocation([*found, "ATOMS.ADD"], alloc) == ["ATOMS.ADD"]
    assert kc.without_allocation(found, "\tmov.b32 %r1, 0;\n") == found
    for own in ("\tatom.shared.or.b32 %r1, [%r2], 1;\n", "\t@%p1 red.global.add.f32 [%rd1], %f1;\n"):
        assert kc.without_allocation(found, alloc + own) == found


@pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="needs TRITON_INTERPRET=1")
def test_an_interpreted_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="imported under TRITON_INTERPRET=1"):
        kc.inspect_variant(_samples()[0], "sm_80")
    with pytest.raises(ValueError, match="expected one of sm_75"):
        kc.architecture("sm_60")


# --- the parsers --------------------------------------------------------------------------------

SASS = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 STL.64 [R1+0x8], R2 ;
        /*0020*/               @P1 LDL R2, [R1] ;
        /*0030*/              @UP0 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0040*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0050*/                   REDUX.SUM UR4, R2 ;
        /*0060*/                   REDG.E.ADD.F32.FTZ.RN.STRONG.GPU [R2.64], R5 ;
        /*1070*/                   LDGSTS.E.BYPASS.128 [R1], [R2.64] ;
"""


def test_parse_sass() -> None:
    opcodes = kc.parse_sass(SASS)
    assert opcodes["STL.64"] == opcodes["LDL"] == opcodes["UIADD3"] == opcodes["LDGSTS.E.BYPASS.128"] == 1
    assert kc.spill_count(opcodes) == 2
    assert kc.matrix_opcodes(opcodes) == ["HMMA.16816.F32.BF16"]
    assert kc.atomic_opcodes(opcodes) == ["REDG.E.ADD.F32.FTZ.RN.STRONG.GPU"]
    assert kc.matrix_opcodes(Counter(["HGMMA.64x64x16.F32.BF16", "UTCHMMA", "FFMA", "WARPGROUP.ARRIVE"])) == [
        "HGMMA.64x64x16.F32.BF16",
        "UTCHMMA",
    ]
    with pytest.raises(ValueError, match="expected instructions"):
        kc.parse_sass("nvdisasm fatal: no such file")


def test_parse_resource_usage() -> None:
    assert kc.parse_resource_usage(" Function f:\n  REG:150 STACK:24 SHARED:0 LOCAL:0") == (150, 24)
    with pytest.raises(ValueError, match="expected a line"):
        kc.parse_resource_usage("")


def test_parse_dots() -> None:
    text = """
      %1 = tt.dot %a, %b, %c, inputPrecision = tf32 : tensor<16x64xf32> * tensor<64x16xf32> -> tensor<16x16xf32>
      %2 = tt.dot %a, %b, %c : tensor<16x64xbf16> * tensor<64x16xbf16> -> tensor<16x16xf32>
    """
    assert kc.parse_dots(text) == "ieee/bf16 tf32/f32"
    assert kc.parse_dots("%1 = arith.addf %a, %b : tensor<16xf32>") == ""


def test_parse_amdgcn_needs_its_metadata() -> None:
    with pytest.raises(ValueError, match="vgpr_count"):
        kc.parse_amdgcn("s_endpgm")


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "num_warps", "expected"),
    [
        ("sm_80", 32, 0, 4, 1.0),  # 16 blocks of 4 warps
        ("sm_80", 128, 0, 4, 0.25),  # 65536 / (128 * 32) = 16 warps of 64
        ("sm_80", 255, 0, 8, 0.125),  # 8 warps
        ("sm_80", 32, 81 * 1024, 4, 0.125),  # two blocks by shared memory, with the driver's KiB
        ("sm_80", 32, 82 * 1024, 4, 0.0625),
        ("sm_86", 64, 0, 4, 2 / 3),  # 32 warps of 48
        ("sm_75", 32, 65536, 8, 0.25),
        ("gfx942", 64, 0, 4, 1.0),
        ("gfx942", 128, 0, 4, 0.5),
        ("gfx942", 74, 32768, 4, 0.25),
    ],
)
def test_occupancy(arch: str, registers: int, shared: int, num_warps: int, expected: float) -> None:
    assert kc.occupancy(kc.architecture(arch), registers, shared, num_warps) == pytest.approx(expected)


@pytest.mark.parametrize(("arch", "limit"), [("sm_75", 65536), ("sm_80", 166912), ("sm_89", 101376), ("sm_90", 232448)])
def test_shared_limits(arch: str, limit: int) -> None:
    assert kc.architecture(arch).shared_limit == limit


# --- the catalogue ------------------------------------------------------------------------------


def _assert_claims(rows: list[kc.Resources]) -> None:
    assert rows
    broken = [f"{r.variant} on {r.arch}: {claim}" for r in rows for claim in r.broken_claims()]
    assert not broken, f"{len(broken)} claims do not hold:\n  " + "\n  ".join(broken[:20])


def test_every_kernel_keeps_its_claims_on_two_architectures() -> None:
    rows = _compile("fast", FAST_ARCHITECTURES)
    _assert_claims(rows)
    assert {r.name for r in rows} == {v.kernel.fn.__name__ for v in variants()}
    assert {r.arch for r in rows} == set(FAST_ARCHITECTURES)
    for arch in FAST_ARCHITECTURES:
        assert any(r.mma for r in rows if r.arch == arch and r.dtype == "bfloat16"), f"no matrix instruction on {arch}"


def test_bfloat16_products_compile_where_there_is_no_tf32() -> None:
    """gfx90a refuses a product that mentions TF32, of whatever operands."""
    rows = _compile("bfloat16", ("gfx90a",))
    assert {"logits_kernel", "statistics_kernel", "backward_kernel"} <= {r.name for r in rows}
    _assert_claims(rows)


@pytest.mark.parametrize("arch", kc.ARCHITECTURES)
def test_every_configuration_keeps_its_claims(arch: str) -> None:
    """With every option and both ends of alignment where no spill is claimed; elsewhere every tile in every type."""
    _assert_claims(_compile("extremes" if arch in kc.NO_SPILLS else "tiles", (arch,)))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
