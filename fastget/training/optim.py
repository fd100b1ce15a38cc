"""SGD as the paper sets it, by the fastest implementation that is here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from fastget.common import apex
from fastget.config import OptimConfig


def build_optimizer(
    config: OptimConfig,
    backbone: list[nn.Parameter],
    heads: list[nn.Parameter],
    device: torch.device,
    bottleneck: Collection[nn.Parameter] = (),  # a part of the heads
    frozen: Collection[nn.Parameter] = (),  # another part, which is not to move where a method has frozen it
) -> torch.optim.Optimizer:
    """SGD over two groups: the backbone at a share of the learning rate, everything else at all of it. Between them the
    bottleneck, where it has a share of its own, and what a method freezes; otherwise checkpoints keep the two that they
    always had."""
    own_rate = list(bottleneck) if config.bottleneck_lr_scale != 1 else []
    apart = {id(p) for p in (*own_rate, *frozen)}
    groups: list[dict[str, Any]] = [
        {"params": backbone, "base_lr": config.lr * config.backbone_lr_scale},
        {"params": [p for p in heads if id(p) not in apart], "base_lr": config.lr},  # the last: its rate is logged
    ]
    if frozen:
        groups.insert(1, {"params": list(frozen), "base_lr": config.lr, "frozen": True})
    if own_rate:
        groups.insert(1, {"params": own_rate, "base_lr": config.lr * config.bottleneck_lr_scale})
    if config.backbone_momentum is not None:
        own = config.backbone_momentum
        groups[0] |= {"momentum": own, "nesterov": config.nesterov and own > 0}
    options: dict[str, Any] = {
        "lr": config.lr,
        "momentum": config.momentum,
        "nesterov": config.nesterov,
        "weight_decay": config.weight_decay,
    }
    impl = choose_impl(config.impl, device)
    if impl == "apex":
        from apex.optimizers import FusedSGD

        optimizer: torch.optim.Optimizer = FusedSGD(groups, **options)
        return optimizer
    return torch.optim.SGD(groups, **options, fused=True if impl == "fused" else None)


def fill_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Zeros, which give the same first step to the bit. For float16: torch's fused SGD makes its momentum in the first
    step without filling it, and where the scaler skips that very step, as it often does, what lay in memory before is
    the momentum from then on (torch 2.15)."""
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else ():
        for parameter in group["params"] if group["momentum"] else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def forget_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Zeros, in place: the next step is to the bit that of a new optimizer."""
    for state in optimizer.state.values():
        if state.get("momentum_buffer") is not None:
            state["momentum_buffer"].zero_()


def choose_impl(wanted: str, device: torch.device) -> str:
    """`auto`: torch's fused SGD where the device has one, plain otherwise. apex only when it is asked for and real."""
    if wanted == "apex":
        found = apex.find_apex()
        if found != "nvidia":
            which = "the `apex` installed here is an unrelated package" if found else "it is not installed"
            raise ValueError(f"optim.impl=apex needs NVIDIA's apex, and {which}. {apex.ADVICE}")
        if device.type != "cuda":
            raise ValueError("optim.impl=apex runs on CUDA devices only: use optim.impl=auto")
    if wanted != "auto":
        return wanted
    return "fused" if device.type in ("cuda", "cpu") else "plain"
