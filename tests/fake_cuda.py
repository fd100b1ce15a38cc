"""A GPU's path without a GPU: tensors that have a device, a type and a shape, and no content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


def autocast_on_fake_cuda(patch: pytest.MonkeyPatch) -> None:
    """torch switches it off where there is no GPU."""
    patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    patch.setattr(torch.cuda, "is_bf16_supported", lambda *args: True)


def to_fake_cuda(model: nn.Module) -> None:
    """Within a FakeTensorMode, in the layout that it has."""
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None:
                module._parameters[name] = nn.Parameter(torch.empty_strided(p.shape, p.stride(), device="cuda"))
        for name, b in list(module._buffers.items()):
            if b is not None:
                module._buffers[name] = torch.empty(b.shape, dtype=b.dtype, device="cuda")


# what reads a number from the device, or has a shape that depends on values
READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount", "aten.equal.")
SENT = "lift_fresh"  # a tensor of Python's numbers, which a GPU would have to be sent


class Waits(TorchDispatchMode):
    """Names what would make the host wait for a GPU: numbers read from it, rows counted, copies that are not on their
    way alone."""

    def __init__(self, sent: bool = True) -> None:
        """`sent`: tensors made of numbers on the host count too: a step has none of them, an evaluation has indices."""
        super().__init__()
        self.seen: list[str] = []
        self._words = (*READS, SENT) if sent else READS

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given, name = kwargs or {}, str(func)
        if any(word in name for word in self._words):
            self.seen.append(name)
        if "_to_copy" in name and _crosses(args[0], given.get("device")) and not given.get("non_blocking"):
            self.seen.append(name)
        if "aten.copy_" in name and _crosses(args[0], args[1].device) and not (len(args) > 2 and args[2]):
            self.seen.append(name)
        result: Callable[..., Any] = func(*args, **given)
        return result


def _crosses(tensor: torch.Tensor, device: torch.device | None) -> bool:
    return device is not None and {tensor.device.type, torch.device(device).type} == {"cpu", "cuda"}
