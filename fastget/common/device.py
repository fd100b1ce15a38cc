"""Which device to run on."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def choose_device(name: str, option: str = "--device") -> torch.device:
    """`auto`: the current CUDA device if there is one, else the CPU. `option` is what a message calls the choice."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"{option} must be cpu, cuda, cuda:N or auto, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"{option} must be cpu, cuda, cuda:N or auto, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{option} is {name!r}, and torch sees no CUDA device: use cpu, or see `fastget doctor`")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"{option} is {name!r}, and torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def laid_out(module: Module, device: torch.device) -> Module:
    """On the device, and there in the layout that images come in: channels last on a GPU, where convolutions are
    faster for it."""
    module.to(device)
    return module.to(memory_format=torch.channels_last) if device.type == "cuda" else module
