"""Which number type the network runs in. A method's memory and losses are float32 whatever it is."""

from __future__ import annotations

from pathlib import Path

import torch

from fastget.common.choices import Precision


def choose_precision(wanted: Precision, device: torch.device, force: bool = False) -> torch.dtype:
    """`auto`: bfloat16 on GPUs from Ampere on, float16 on older ones, float32 on a CPU.
    bfloat16 on a CPU that has no instructions for it is refused, unless forced: it is up to 18 times slower."""
    if wanted == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    if wanted == "bfloat16" and not force:
        if device.type == "cpu" and not cpu_has_bfloat16():
            raise ValueError(
                "train.precision=bfloat16 on this CPU would be slower than float32 (up to 18 times): it has neither "
                "AVX512-BF16 nor AMX. Use train.precision=float32, or insist with train.force_precision=true"
            )
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            raise ValueError(
                "train.precision=bfloat16 needs a GPU of compute capability 8.0 or later (Ampere): "
                "use train.precision=float16, or insist with train.force_precision=true"
            )
    dtype = getattr(torch, wanted)
    assert isinstance(dtype, torch.dtype)
    return dtype


def of_a_run(wanted: Precision, device: torch.device, force: bool = False) -> torch.dtype:
    """What a trained network runs in: the type that its run was told, or float32 on a device that has no instructions
    for it. float16 on a CPU is one of these: it was meant for the GPU that the run was on."""
    if device.type == "cpu" and wanted == "float16":
        return torch.float32
    try:
        return choose_precision(wanted, device, force)
    except ValueError:
        return torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """The network runs in `dtype`, its parameters stay float32."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def cpu_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU multiplies bfloat16 itself."""
    if not cpuinfo.is_file():
        return False
    words = set(cpuinfo.read_text().split())
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16"})
