"""What the network g(phi(x)) is made of: a backbone with its head removed, a bottleneck, a classifier.

Shapes: B images, D feature width, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastget.common.ranks import this_rank
from fastget.common.scrambled import scrambled
from fastget.common.text import first_line
from fastget.config import NetworkConfig
from fastget.networks.backbones import (
    SmallResNet,
    torchvision_backbone,
    torchvision_members,
)
from fastget.networks.timm_backbones import PREFIX, timm_backbone, timm_reader
from fastget.networks.weights import State, load_backbone_weights


class CosineHead(nn.Linear):
    """W f / |f| / temperature, W free in length and without a bias: MME's classifier."""

    def __init__(self, feature_dim: int, num_classes: int, temperature: float) -> None:
        super().__init__(feature_dim, num_classes, bias=False)
        self.temperature = temperature

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):  # a rounding over the temperature is a large one
            wide = features.to(torch.promote_types(features.dtype, torch.float32))
            return super().forward(F.normalize(wide, dim=1)) / self.temperature


class Dropout(nn.Module):
    """x * mask / sqrt(1 - p) in training, which keeps the mean square; ordinary dropout divides by 1 - p (AFN's code).

    The mask is of the global batch, and made of a count that a checkpoint holds: a resumed run draws the same."""

    drawn: Tensor  # () int64, of calls, from a start of the seed's own

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("drawn", torch.randint(2**62, ()))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        places = torch.arange(x.numel(), device=x.device).view_as(x) + this_rank() * x.numel()
        kept = scrambled(places, scrambled(self.drawn, 0)) >= int((2 * self.p - 1) * 2**63)
        self.drawn.add_(1)
        return x * kept.to(x.dtype) / math.sqrt(1 - self.p)


class Network(nn.Module):
    """Backbone -> bottleneck -> features (B, D) -> classifier -> logits (B, C)."""

    def __init__(
        self,
        backbone: nn.Module,
        backbone_dim: int,
        num_classes: int,
        feature_dim: int,
        norm: bool,
        cosine: float | None = None,  # the temperature of a cosine head; None: a linear one
        relu: bool = False,
        dropout: float = 0.0,
        weight_norm: bool = False,  # of a linear head
    ) -> None:
        super().__init__()
        self.backbone = backbone
        layers: list[nn.Module] = [nn.Linear(backbone_dim, feature_dim)]
        if norm:
            layers.append(nn.BatchNorm1d(feature_dim))
        if relu:
            layers.append(nn.ReLU())
        if dropout:
            layers.append(Dropout(dropout))
        self.bottleneck = nn.Sequential(*layers)
        self.classifier = (
            nn.Linear(feature_dim, num_classes) if cosine is None else CosineHead(feature_dim, num_classes, cosine)
        )
        if weight_norm:  # W_c = g_c v_c / |v_c|: `classifier.weight` is W, g and v keep the layer's own start
            nn.utils.parametrizations.weight_norm(self.classifier)
        else:
            nn.init.xavier_normal_(self.classifier.weight)
        if cosine is None:
            nn.init.zeros_(self.classifier.bias)

    @property
    def trains_backbone(self) -> bool:
        """Whether a backward pass goes through all of it."""
        weight = next(self.backbone.parameters(), None)
        return weight is None or weight.requires_grad

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) -> features (B, D), logits (B, C)."""
        features = self.bottleneck(self.backbone(images))
        return features, self.classifier(features)


def build_network(config: NetworkConfig, num_classes: int, side: int = 224, given: int | None = None) -> Network:
    """The network that the configuration names, with the weights that it names, for images of `side` pixels.

    `given`: it is shown features of this width, which a backbone has made already, and has none of its own."""
    if given is not None:
        return _network(config, nn.Identity(), given, num_classes)
    if config.name == "small":
        if config.weights == "imagenet":
            raise ValueError("network.name=small has no ImageNet weights: set network.weights=none, or give a file")
        small = SmallResNet(side)
        backbone: nn.Module = small
        dim = small.feature_dim
        _load(backbone, config.weights)
    elif config.name.startswith(PREFIX):
        backbone, dim = timm_backbone(config.name, config.weights == "imagenet", side)
        _load(backbone, config.weights, timm_reader(backbone))
    else:
        backbone, dim = torchvision_backbone(config.name, config.weights, side)
        _refuse_side(backbone, config.name, side)
        if config.weights not in torchvision_members(config.name):
            _load(backbone, config.weights)
    return _network(config, backbone, dim, num_classes)


def _load(backbone: nn.Module, weights: str, convert: Callable[[State], State] | None = None) -> None:
    """The weights of a file, if that is what is named."""
    if weights not in ("imagenet", "none"):
        load_backbone_weights(backbone, Path(weights), convert)


def _refuse_side(backbone: nn.Module, name: str, side: int) -> None:
    """ValueError if the backbone cannot take images of this size. It is shown one without content."""
    state = {key: value.to("meta") for key, value in (*backbone.named_parameters(), *backbone.named_buffers())}
    training = backbone.training
    try:
        with torch.no_grad():
            torch.func.functional_call(backbone.eval(), state, (torch.zeros(1, 3, side, side, device="meta"),))
    except NotImplementedError:
        return  # an operation that cannot be tried without content
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ValueError(
            f"network.name={name} cannot take images of {side} x {side} pixels ({first_line(error)}): set data.crop to "
            "what it was made for, as 224, or choose another network"
        ) from error
    finally:
        backbone.train(training)


def _network(config: NetworkConfig, backbone: nn.Module, dim: int, num_classes: int) -> Network:
    cosine = config.head_temperature if config.head == "cosine" else None
    return Network(
        backbone,
        dim,
        num_classes,
        config.bottleneck_dim,
        config.bottleneck_norm,
        cosine,
        config.bottleneck_relu,
        config.bottleneck_dropout,
        config.head == "weight-norm",
    )
