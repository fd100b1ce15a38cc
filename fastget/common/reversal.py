"""The reversal of gradients that adversarial methods train by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def reversed_gradient(x: Tensor, factor: float) -> Tensor:
    """x itself; its gradient is multiplied by -factor."""
    same: Tensor = _Reversal.apply(x, factor)
    return same


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.factor * gradients[0], None
