"""Who computes a step: the Triton kernels or the reference, under the same names."""

from __future__ import annotations

import warnings
from types import ModuleType

import torch

from fastget import reference
from fastget.common.choices import Backend
from fastget.methods import tuned


def choose_backend(backend: Backend, device: torch.device) -> ModuleType:
    """The module whose functions run the step: `fastget.kernels` or `fastget.reference`."""
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
        tuned.use_once(device)
    return kernels
