"""What the public functions refuse, each message with what was expected, what came, and the way out."""

from __future__ import annotations

import torch
from torch import Tensor

from fastget.kernels.launch import dry, interpreting

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def check_float(name: str, x: Tensor, ndim: int) -> None:
    """A float32, float16 or bfloat16 tensor of `ndim` axes on a device that can run the kernels."""
    if x.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, got shape {tuple(x.shape)}")
    if x.dtype not in FLOATS:
        raise ValueError(
            f"{name} must be float32, float16 or bfloat16, got {x.dtype}: convert it, or use backend='reference'"
        )
    check_runs(name, x)


def check_runs(name: str, x: Tensor) -> None:
    """The kernels run on a GPU, and on the CPU under the interpreter."""
    if x.device.type not in ("cuda", "cpu") and not (x.device.type == "meta" and dry()):
        raise ValueError(f"{name} is on {x.device}: the Triton kernels need a CUDA or ROCm device")
    if x.device.type == "cpu" and not interpreting() and not dry():
        raise ValueError(
            f"{name} is on the CPU, where the Triton kernels run only under the interpreter: set TRITON_INTERPRET=1 "
            "in the environment before triton is imported, or use backend='reference'"
        )


def check_like(name: str, x: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """A floating-point tensor of this shape, on this device."""
    check_float(name, x, len(shape))
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(x.shape)}")
    check_device(name, x, device)


def check_labels(name: str, y: Tensor, rows: int, device: torch.device) -> None:
    """`rows` integer classes on this device."""
    if y.dtype not in (torch.int64, torch.int32) or tuple(y.shape) != (rows,):
        raise ValueError(
            f"{name} must be int64 or int32 of shape ({rows},), got {y.dtype} of shape {tuple(y.shape)}: "
            "pass one class per row, such as logits.argmax(1)"
        )
    check_device(name, y, device)


def check_device(name: str, x: Tensor, device: torch.device) -> None:
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}, the features are on {device}: move it there")


def check_pair(features: Tensor, prototypes: Tensor, name: str = "prototypes") -> None:
    """Features (B, D) with at least one row, and prototypes (C, D) beside them."""
    check_float("features", features, 2)
    if 0 in features.shape:
        raise ValueError(f"features must hold at least one row and one column, got shape {tuple(features.shape)}")
    check_float(name, prototypes, 2)
    if prototypes.shape[1] != features.shape[1] or prototypes.shape[0] < 1:
        raise ValueError(
            f"{name} must have shape (classes, {features.shape[1]}), as wide as the features, "
            f"got {tuple(prototypes.shape)}"
        )
    check_device(name, prototypes, features.device)


def check_tau(tau: float) -> None:
    if not tau > 0:
        raise ValueError(f"tau must be a positive number, got {tau!r}")
