"""The network g(phi(x)): a torchvision backbone with its head removed, a bottleneck, a linear classifier.

Shapes: B images, D feature width, C classes.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from fastget.common.text import and_more, close_matches
from fastget.config import NetworkConfig


class Network(nn.Module):
    """Backbone -> bottleneck -> features (B, D) -> classifier -> logits (B, C)."""

    def __init__(self, backbone: nn.Module, backbone_dim: int, num_classes: int, feature_dim: int, norm: bool) -> None:
        super().__init__()
        self.backbone = backbone
        layers: list[nn.Module] = [nn.Linear(backbone_dim, feature_dim)]
        if norm:
            layers.append(nn.BatchNorm1d(feature_dim))
        self.bottleneck = nn.Sequential(*layers)
        self.classifier = nn.Linear(feature_dim, num_classes)
        nn.init.xavier_normal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) -> features (B, D), logits (B, C)."""
        features = self.bottleneck(self.backbone(images))
        return features, self.classifier(features)


def build_network(config: NetworkConfig, num_classes: int, side: int = 224) -> Network:
    """The network that the configuration names, with the weights that it names, for images of `side` pixels."""
    if config.name == "small":
        if config.weights == "imagenet":
            raise ValueError("network.name=small has no ImageNet weights: set network.weights=none, or give a file")
        small = SmallResNet(side)
        backbone: nn.Module = small
        dim = small.feature_dim
    else:
        backbone, dim = _torchvision_backbone(config.name, imagenet=config.weights == "imagenet")
    if config.weights not in ("imagenet", "none"):
        load_backbone_weights(backbone, Path(config.weights))
    return Network(backbone, dim, num_classes, config.bottleneck_dim, config.bottleneck_norm)


# --- backbones -----------------------------------------------------------------------------------


def _torchvision_backbone(name: str, imagenet: bool) -> tuple[nn.Module, int]:
    """A torchvision classifier without its last linear layer, and the width of what goes into that layer."""
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        close = close_matches(name, [*names, "small"], most=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "see torchvision.models.list_models()"
        raise ValueError(f"unknown network.name {name!r}: {hint}")
    options = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    if imagenet:
        weights = torchvision.models.get_model_weights(name).DEFAULT
        options.pop("init_weights", None)
        try:
            model = torchvision.models.get_model(name, weights=weights, **options)
        except OSError as error:  # URLError is one
            raise ValueError(
                f"cannot download the ImageNet weights of {name} ({error}). On a machine without internet fetch "
                f"{weights.url} elsewhere, and give the file: --set network.weights=FILE; "
                "or start from random weights: --set network.weights=none"
            ) from error
    else:
        model = torchvision.models.get_model(name, weights=None, **options)
    return model, _remove_head(model, name)


def _remove_head(model: nn.Module, name: str) -> int:
    """Replace the last linear layer by the identity; its input width."""
    linear = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            f"network.name={name} has no linear head to replace: choose another backbone, such as resnet50"
        )
    head = model.get_submodule(linear[-1])
    parent, _, child = linear[-1].rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity())
    return int(head.in_features)  # type: ignore[arg-type]  # an nn.Linear, by the line above


def load_backbone_weights(backbone: nn.Module, file: Path) -> None:
    """A local file of weights: a state dict as torchvision or fastget saves them. Its head, if any, is left out."""
    if not file.is_file():
        raise ValueError(f"network.weights: no file {file}; give imagenet, none, or a file of weights")
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(
            f"network.weights: {file} is not a file of weights alone: {str(error).splitlines()[0]}"
        ) from error
    for key in ("state_dict", "model", "network"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping):
        raise ValueError(f"network.weights: {file} holds a {type(state).__name__}, expected a state dict")
    given = {
        k.removeprefix("module.").removeprefix("network.").removeprefix("backbone."): v
        for k, v in state.items()
        if isinstance(v, Tensor)
    }
    wanted = backbone.state_dict()
    missing = [k for k in wanted if k not in given and not k.endswith("num_batches_tracked")]
    other = [k for k in wanted if k in given and given[k].shape != wanted[k].shape]
    if missing or other:
        why = [f"{len(missing)} entries are missing ({and_more(missing, 3)})"] if missing else []
        why += [f"{len(other)} entries have another shape ({and_more(other, 3)})"] if other else []
        raise ValueError(
            f"network.weights: {file} does not fit this network: {', '.join(why)}. Is network.name the same?"
        )
    backbone.load_state_dict({k: given[k] for k in wanted if k in given}, strict=False)


# --- a small network for small images ------------------------------------------------------------


class SmallResNet(nn.Module):
    """A residual network for images of about 32 pixels: three stages of convolution, pooling and a residual branch.

    It has no batch-norm: on `digits` a plain three-layer network, the same with and without it, had 47 against 62 %
    source-only and 70 against 95 % with GeT (one seed). The branches start at zero instead (as in SkipInit).
    """

    widths = (16, 32, 64)

    def __init__(self, side: int) -> None:
        super().__init__()
        inputs = (3, *self.widths)
        pairs = list(zip(inputs, self.widths, strict=False))
        self.stages = nn.ModuleList(nn.Conv2d(before, width, 3, padding=1) for before, width in pairs)
        self.branches = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for width in self.widths)
        self.scales = nn.Parameter(torch.zeros(len(self.widths)))
        self.feature_dim = self.widths[-1] * (side // 2 ** len(self.widths)) ** 2
        if not self.feature_dim:
            raise ValueError(f"network.name=small needs images of at least 8 pixels, got data.crop={side}")

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, side, side) -> (B, feature_dim)."""
        for stage, branch, scale in zip(self.stages, self.branches, self.scales, strict=True):
            x = F.max_pool2d(stage(x), 2).relu()
            x = x + scale * branch(x).relu()
        return x.flatten(1)
