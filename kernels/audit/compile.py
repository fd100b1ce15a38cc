"""Compile a kernel for any architecture without a GPU, and read what the compiler made of it.

    resources = inspect_variant(variant, "sm_90")
    resources.registers, resources.spills, resources.shared, resources.occupancy, resources.mma

Triton's wheel carries the compilers (ptxas, LLVM for AMD) and the disassemblers (cuobjdump, nvdisasm).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.cache import get_cache_manager

from fastget.kernels.audit.catalogue import Variant
from fastget.kernels.configs import LARGE
from fastget.kernels.launch import compile_options


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What one multiprocessor (compute unit) holds."""

    backend: str  # "cuda" or "hip"
    arch: int | str
    warp_size: int = 32
    warps: int  # resident, at most
    blocks: int  # resident, at most
    shared: int  # bytes
    shared_limit: int  # bytes that one block may use
    registers: int = 65536  # 32-bit; AMD: per lane of one of the four SIMDs

    @property
    def large(self) -> bool:
        """Whether its tiles may be large, as configs.large() finds on the card."""
        return self.shared_limit >= LARGE

    @property
    def target(self) -> GPUTarget:
        return GPUTarget(self.backend, self.arch, self.warp_size)


def _cuda(arch: int, warps: int, blocks: int, shared: int) -> Architecture:
    reserved = 0 if arch == 75 else 1  # KiB per block, the driver's
    limit = (shared - reserved) * 1024
    return Architecture(backend="cuda", arch=arch, warps=warps, blocks=blocks, shared=shared * 1024, shared_limit=limit)


def _hip(arch: str) -> Architecture:
    return Architecture(
        backend="hip", arch=arch, warp_size=64, warps=32, blocks=32, shared=65536, shared_limit=65536, registers=512
    )


ARCHITECTURES: dict[str, Architecture] = {
    "sm_75": _cuda(75, warps=32, blocks=16, shared=64),
    "sm_80": _cuda(80, warps=64, blocks=32, shared=164),
    "sm_86": _cuda(86, warps=48, blocks=16, shared=100),
    "sm_89": _cuda(89, warps=48, blocks=24, shared=100),
    "sm_90": _cuda(90, warps=64, blocks=32, shared=228),
    "sm_100": _cuda(100, warps=64, blocks=32, shared=228),
    "sm_120": _cuda(120, warps=48, blocks=24, shared=100),
    "gfx942": _hip("gfx942"),
    "gfx90a": _hip("gfx90a"),
}
NO_SPILLS = ("sm_80", "sm_90", "sm_100")  # where zero spills are claimed


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one variant uses on one architecture."""

    name: str  # the kernel's
    variant: str  # the catalogue's name
    dtype: str  # of the features
    config: str  # the constexprs, warps and stages
    arch: str
    registers: int = 0  # per thread
    stack: int = 0  # bytes per thread: 0 where nothing is spilled
    spills: int = 0  # instructions that store or load a spilled register; AMD: registers spilled
    shared: int = 0  # bytes per block
    shared_limit: int = 0
    occupancy: float = 0.0  # share of the resident warps that registers and shared memory allow
    mma: str = ""  # matrix instructions found
    dots: str = ""  # element types and input precisions of the source's tl.dot
    atomics: str = ""  # atomic instructions found
    fused_sums: int = 0  # adds of another lane's number that a product was fused into: such lanes end with other bits
    error: str = ""  # why it did not compile

    def broken_claims(self) -> list[str]:
        """What is claimed of every kernel and does not hold here."""
        broken = [f"does not compile: {self.error}"] if self.error else []
        if self.arch in NO_SPILLS and (self.stack or self.spills):
            broken.append(f"spills: {self.stack} bytes of stack, {self.spills} instructions")
        if self.shared > self.shared_limit:
            broken.append(f"shared memory: {self.shared} bytes of {self.shared_limit}")
        if self.atomics:
            broken.append(f"atomics, whose sum depends on the order: {self.atomics}")
        if self.fused_sums:
            broken.append(f"{self.fused_sums} sums whose lanes differ in the last bit: a product is fused into them")
        if re.search("f16|tf32", self.dots) and self.arch != "sm_75" and not self.mma:
            broken.append(f"tl.dot on {self.dots} without a matrix instruction")
        return broken


# --- reading what the disassemblers print ------------------------------------------------------


def parse_resource_usage(text: str) -> tuple[int, int]:
    """Registers and stack bytes from `cuobjdump --dump-resource-usage`."""
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise ValueError(f"expected a line 'REG:n STACK:n' from cuobjdump, got {text[:200]!r}")
    return int(found[1]), int(found[2])


def parse_sass(text: str) -> Counter[str]:
    """How often each opcode stands in the output of `nvdisasm -c`."""
    opcodes = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", text, re.MULTILINE)
    if not opcodes:
        raise ValueError(f"expected instructions from nvdisasm, got {text[:200]!r}")
    return Counter(opcodes)


def spill_count(opcodes: Counter[str]) -> int:
    """Instructions that move registers to and from the stack: STL, LDL."""
    return sum(n for op, n in opcodes.items() if op.split(".")[0] in ("STL", "LDL"))


def matrix_opcodes(opcodes: Counter[str]) -> list[str]:
    """HMMA and its like; HGMMA on Hopper; UTCHMMA on Blackwell."""
    return sorted(op for op in opcodes if re.fullmatch(r"(UTC)?[A-Z]{1,2}G?MMA", op.split(".")[0]))


def atomic_opcodes(opcodes: Counter[str]) -> list[str]:
    """ATOM, ATOMG, ATOMS, RED, REDG. (REDUX is a sum inside a warp, not an atomic.)"""
    return sorted(op for op in opcodes if re.fullmatch(r"ATOM[GS]?|REDG?|UTMAREDG", op.split(".")[0]))


def without_allocation(atomics: Sequence[str], ptx: str) -> list[str]:
    """Those that the program asks for. Blackwell's products take tensor memory by tcgen05.alloc, of which the assembler
    makes ATOMS.AND and ATOMS.OR on a mask of what is taken: no number is summed by them."""
    if "tcgen05.alloc" not in ptx or re.search(r"^\s*(@\S+\s+)?(atom|red)\.", ptx, re.MULTILINE):
        return list(atomics)
    return [op for op in atomics if op not in ("ATOMS.AND", "ATOMS.OR")]


def parse_fused_sums(ptx: str) -> int:
    """How many fused multiply-adds take a number from another lane: the first add of a sum over products."""
    shuffled = set(re.findall(r"shfl\.sync\.\w+\.b32\s+(%\w+)", ptx))
    return sum(addend in shuffled for addend in re.findall(r"fma\.rn\S*\s+%\w+, %\w+, %\w+, (%\w+);", ptx))


def parse_dots(ttir: str) -> str:
    """Input precision and element type of each tl.dot, such as "tf32/f32". Where none is printed it is ieee."""
    found = re.findall(r"tt\.dot ([^:]*): tensor<[\dx]+x(\w+)>", ttir)
    precisions = [(re.search(r"inputPrecision = (\w+)", options), kind) for options, kind in found]
    return " ".join(sorted({f"{precision[1] if precision else 'ieee'}/{kind}" for precision, kind in precisions}))


def parse_amdgcn(text: str) -> dict[str, Any]:
    """Registers, spills, matrix and atomic instructions of AMD's assembly."""

    def number(field: str) -> int:
        found = re.search(rf"^\s*\.{field}:\s+(\d+)", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"expected .{field} in the assembly's metadata, got none")
        return int(found[1])

    opcodes = set(re.findall(r"^\s+([a-z]\w+)", text, re.MULTILINE))
    return {
        "registers": number("vgpr_count"),
        "stack": number("private_segment_fixed_size"),
        "spills": number("vgpr_spill_count") + number("sgpr_spill_count"),
        "mma": " ".join(sorted(op for op in opcodes if re.match(r"v_(mfma|smfmac|wmma)", op))),
        "atomics": " ".join(sorted(op for op in opcodes if re.match(r"(global|flat|buffer|ds)_(\w+_)?atomic", op))),
    }


def occupancy(arch: Architecture, registers: int, shared: int, num_warps: int) -> float:
    """The share of the resident warps that one kernel's blocks can fill."""
    by_shared = arch.shared // max(shared + arch.shared - arch.shared_limit, 1)
    if arch.backend == "cuda":  # registers go to a warp in lots of 256, and to four schedulers
        per_warp = math.ceil(max(registers, 1) * 32 / 256) * 256
        by_registers = arch.registers // per_warp // 4 * 4 // num_warps
    else:  # in lots of 8 per lane; a SIMD holds at most 8 waves
        by_registers = 4 * min(8, arch.registers // (math.ceil(max(registers, 1) / 8) * 8)) // num_warps
    blocks = min(arch.blocks, arch.warps // num_warps, by_registers, by_shared)
    return blocks * num_warps / arch.warps


# --- compiling ---------------------------------------------------------------------------------


def architecture(name: str) -> Architecture:
    """The entry of ARCHITECTURES, or an error that lists them."""
    if name not in ARCHITECTURES:
        raise ValueError(f"expected one of {', '.join(ARCHITECTURES)}, got {name!r}")
    return ARCHITECTURES[name]


def _tool(name: str, *args: str) -> str:
    directory = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    return subprocess.run([str(directory / name), *args], capture_output=True, text=True, check=True).stdout


def _need_compiler(variant: Variant) -> None:
    if not hasattr(variant.kernel, "cache_key"):
        raise ValueError(
            f"{variant.name} was imported under TRITON_INTERPRET=1 and cannot be compiled: "
            "start a Python in which that variable is not set"
        )


def compile_variant(variant: Variant, arch: str) -> Any:
    """Triton's compiled kernel for `arch`, made on this machine."""
    _need_compiler(variant)
    chip = architecture(arch)
    source = ASTSource(variant.kernel, variant.signature, variant.constexprs, variant.attrs_for(chip.backend))
    options = compile_options(variant.num_warps, variant.num_stages, chip.backend)
    return triton.compile(source, target=chip.target, options=options)


def describe(variant: Variant) -> str:
    """The configuration on one line."""
    parts = [f"{k}={v}" for k, v in variant.constexprs.items() if v is not None]
    return " ".join([*parts, f"warps={variant.num_warps}", f"stages={variant.num_stages}"])


def inspect_variant(variant: Variant, arch: str) -> Resources:
    """Compile and read. What the compiler refuses comes back as `error`."""
    _need_compiler(variant)
    chip = architecture(arch)
    named: dict[str, Any] = {
        "name": variant.kernel.fn.__name__,
        "variant": variant.name,
        "dtype": str(variant.dtype).removeprefix("torch."),
        "config": describe(variant),
        "arch": arch,
        "shared_limit": chip.shared_limit,
    }
    try:
        compiled = compile_variant(variant, arch)
        used = _read_cubin(compiled) if chip.backend == "cuda" else parse_amdgcn(compiled.asm["amdgcn"])
    except Exception as error:  # noqa: BLE001  (the compiler raises many kinds; the row shows which)
        lines = str(error).strip().splitlines() or [""]
        return Resources(**named, error=f"{type(error).__name__}: {lines[-1][:200]}")
    shared = int(compiled.metadata.shared)
    share = occupancy(chip, used["registers"], shared, variant.num_warps)
    return Resources(**named, **used, shared=shared, occupancy=share, dots=parse_dots(compiled.asm["ttir"]))


def _read_cubin(compiled: Any) -> dict[str, Any]:
    """What the disassemblers say, kept beside the cubin in Triton's cache: they take longer than a cached compile."""
    cache = get_cache_manager(compiled.hash)
    name = f"resources-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}.json"
    if (known := cache.get_file(name)) is not None:
        found: dict[str, Any] = json.loads(Path(known).read_text())
        return found
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.cubin"
        path.write_bytes(compiled.asm["cubin"])
        registers, stack = parse_resource_usage(_tool("cuobjdump", "--dump-resource-usage", str(path)))
        opcodes = parse_sass(_tool("nvdisasm", "-c", str(path)))
    found = {
        "registers": registers,
        "stack": stack,
        "spills": spill_count(opcodes),
        "mma": " ".join(matrix_opcodes(opcodes)),
        "atomics": " ".join(without_allocation(atomic_opcodes(opcodes), compiled.asm["ptx"])),
        "fused_sums": parse_fused_sums(compiled.asm["ptx"]),
    }
    cache.put(json.dumps(found), name, binary=False)
    return found


def _inspect_named(module: str, function: str, variant: Variant, arch: str) -> Resources:
    """In another process, where the kernel comes by its name."""
    return inspect_variant(replace(variant, kernel=getattr(importlib.import_module(module), function)), arch)


def _named(variant: Variant) -> tuple[str, str, Variant]:
    kernel = variant.kernel.fn
    return kernel.__module__, kernel.__name__, replace(variant, kernel=None)


def pairs(variants: Sequence[Variant], archs: Sequence[str]) -> list[tuple[Variant, str]]:
    """Each variant with each architecture whose launcher can choose it."""
    return [(v, arch) for v in variants for arch in archs
            if architecture(arch).backend in v.backends and architecture(arch).large in v.rooms]  # fmt: skip


def inspect_all(variants: Sequence[Variant], archs: Sequence[str], jobs: int | None = None) -> Iterator[Resources]:
    """Every variant on every architecture, as they are done, over at most one process per core."""
    jobs = min(jobs or os.cpu_count() or 1, os.cpu_count() or 1)
    work = pairs(variants, archs)
    if jobs == 1:
        yield from (inspect_variant(variant, arch) for variant, arch in work)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        futures = [pool.submit(_inspect_named, *_named(variant), arch) for variant, arch in work]
        for future in as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C too: what was not begun is not done
