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


def test_the_rate_falls_as_far_as_is_asked() -> None:
    optimizer = build_optimizer(OptimConfig(), BACKBONE, HEAD, CPU)
    found = {}
    for decay in (0.0, 10.0, 20.0):
        set_lr(optimizer, 5, 10, decay)
        found[decay] = optimizer.param_groups[-1]["lr"]
    assert found == {0.0: 0.01, 10.0: 0.01 * 6**-0.75, 20.0: 0.01 * 11**-0.75}


def test_the_backbone_may_have_a_momentum_of_its_own() -> None:
    optimizer = build_optimizer(OptimConfig(backbone_momentum=0.0), BACKBONE, HEAD, CPU)
    assert [(group["momentum"], group["nesterov"]) for group in optimizer.param_groups] == [(0.0, False), (0.9, True)]
    for parameter in (*BACKBONE, *HEAD):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert ["momentum_buffer" in optimizer.state[p] for p in (*BACKBONE, *HEAD)] == [False, True]


BACKBONE, BOTTLENECK, HEAD = ([nn.Parameter(torch.ones(width))] for width in (1, 2, 3))


def test_the_bottleneck_learns_as_atdocs_or_as_the_papers_text() -> None:
    assert rates(1.0) == [(0.001, BACKBONE), (0.01, [*BOTTLENECK, *HEAD])]  # the groups of older checkpoints
    assert rates(0.1) == [(0.001, BACKBONE), (0.001, BOTTLENECK), (0.01, HEAD)]
