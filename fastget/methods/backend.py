"""Who computes a step: the Triton kernels, the fused path of a CPU, or the reference, under the same names."""

from __future__ import annotations

import warnings
from types import ModuleType

import torch

from fastget import reference
from fastget.common.choices import Backend, OnCPU
from fastget.methods import tuned
from fastget.methods.get import fused


def choose_backend(backend: Backend, device: torch.device, on_cpu: OnCPU = "fused") -> ModuleType:
    """The module whose functions run the step: `fastget.kernels`, the CPU's `fused` or `fastget.reference`."""
    if backend == "auto" and device.type == "cpu" and on_cpu == "fused":
        return fused
    if backend == "reference" or (backend == "auto" and device.type != "cuda"):
        return reference
    try:
        from fastget import kernels
    except ImportError as error:
        if backend == "auto":
            warnings.warn(f"the Triton kernels cannot be imported ({error}): using the reference path", stacklevel=3)
            return reference
        raise ValueError(
            f"backend='triton' needs the triton package, which cannot be imported here ({error}); "
            "install triton, or use backend='reference'"
        ) from error
    if device.type == "cuda":
        tuned.use(device)
    return kernels
