"""Memory of a rank: weights, gradients, momentum, what the backward pass needs again, the method's memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from fastget.bases import base_of
from fastget.common.timing import UNTIMED
from fastget.config import Config
from fastget.loading.loader import AHEAD
from fastget.networks.flops import Counted
from fastget.networks.network import Network
from fastget.planning.counts import method_without_content
from fastget.training.cost import bytes_of
from fastget.training.passes import StepKind

CONTEXT = {"cuda": 1.1 * 2**30, "cpu": 0.45 * 2**30}  # the driver's, libraries' and their workspaces


@dataclass(frozen=True)
class Kept:
    """What method and base model keep on a rank, beside the network."""

    parameters: int  # that they learn
    memory: int  # bytes of the method


def kept_by(config: Config, classes: int, target: int, ranks: int) -> Kept:
    """Built without content, for a rank's share of the target: memories of every target image are shared."""
    method = method_without_content(config, classes, math.ceil(target / ranks))
    with torch.device("meta"):
        network = Network(nn.Identity(), 1, classes, config.network.bottleneck_dim, norm=False)
        model = base_of(config.method.base)(network, method, 0.0, UNTIMED, config.base)
    learned = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in network.parameters())
    return Kept(learned, bytes_of(method))


def memory_of(config: Config, counted: Counted, kept: Kept, step: StepKind, scale: float, ranks: int, evaluated: int,
              half: bool, device: str) -> dict[str, float]:  # fmt: skip
    """Bytes by what they are for. `scale`: a rank's batch to the whole one; `evaluated`: images of a batch there.
    The images of a step are counted as if all were kept until its end, which is an upper bound for an own step."""
    frozen = config.optim.backbone_lr_scale == 0
    learned = kept.parameters + (counted.head_parameters if frozen else counted.parameters)
    size = 2 if half else 4
    trained, looked = (
        scale * sum(call.rows for call in step.calls if call.learned is wanted) for wanted in (True, False)
    )
    back = trained * (size * counted.saved + counted.saved_bytes) + 2 * size * counted.largest * trained
    forward = 3 * size * counted.largest * max(looked, evaluated)
    return {
        "weights": 4 * (counted.parameters + kept.parameters) + (2 * counted.parameters if half else 0),
        "gradients and momentum": (8 if ranks == 1 else 12) * learned,  # among ranks a copy that is sent
        "activations": max(back, forward),
        "images": (1 + AHEAD) * 4 * 3 * config.data.preprocessing.crop**2 * scale * step.shown,
        "method": kept.memory,
        "libraries": CONTEXT[device],
    }
