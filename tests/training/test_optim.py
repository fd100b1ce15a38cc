"""The optimizer's groups: who learns at what rate."""

from __future__ import annotations

import torch
from torch import nn

from fastget.config import OptimConfig
from fastget.training.optim import build_optimizer
from fastget.training.schedule import set_lr

CPU = torch.device("cpu")


def rates(scale: float) -> list[tuple[float, list[nn.Parameter]]]:
    optimizer = build_optimizer(OptimConfig(bottleneck_lr_scale=scale), BACKBONE, [*BOTTLENECK, *HEAD], CPU, BOTTLENECK)
    set_lr(optimizer, 0, 10)
    return [(round(group["lr"], 9), group["params"]) for group in optimizer.param_groups]


BACKBONE, BOTTLENECK, HEAD = ([nn.Parameter(torch.ones(width))] for width in (1, 2, 3))


def test_the_bottleneck_learns_as_atdocs_or_as_the_papers_text() -> None:
    assert rates(1.0) == [(0.001, BACKBONE), (0.01, [*BOTTLENECK, *HEAD])]  # the groups of older checkpoints
    assert rates(0.1) == [(0.001, BACKBONE), (0.001, BOTTLENECK), (0.01, HEAD)]
