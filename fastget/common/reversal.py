"""What adversarial training has in common: the reversal of gradients, and a discriminator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def reversed_gradient(x: Tensor, factor: float) -> Tensor:
    """x itself; its gradient is multiplied by -factor."""
    same: Tensor = _Reversal.apply(x, factor)
    return same


def discriminator(width: int, hidden: int) -> nn.Sequential:
    """Of two domains, by vectors of this width: one hidden layer, one logit."""
    layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return layers


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.factor * gradients[0], None
