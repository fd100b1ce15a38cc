"""Which backbones there are: torchvision's classifiers without their heads, and a small one of our own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastget.common.text import close_matches

# those that take images of one size alone
FIXED_SIZE = ("vit_", "maxvit_")


def _models() -> Any:
    """torchvision's models. One that was built for another torch cannot even be imported; `small` does without."""
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        raise ValueError(
            f"torchvision cannot be imported ({error}), and network.name needs it: install the one that goes with "
            f"torch {torch.__version__}, from where that came from (docs/install.md)"
        ) from error
    return torchvision.models


def _refuse_unknown(name: str) -> None:
    models = _models()
    names = models.list_models(module=models)
    if name not in names:
        close = close_matches(name, [*names, "small"], most=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "see torchvision.models.list_models()"
        raise ValueError(f"unknown network.name {name!r}: {hint} (timm's models are timm/NAME)")


def torchvision_members(name: str) -> list[str]:
    """The names of a classifier's published weights: IMAGENET1K_V1 ..."""
    _refuse_unknown(name)
    return list(_models().get_model_weights(name).__members__)


def torchvision_weights(name: str, weights: str) -> Any:
    """The published weights that `weights` names; the default ones where it names none of them, but `none` or a file,
    whose images are taken to be like theirs."""
    member = weights if weights in torchvision_members(name) else "DEFAULT"
    return _models().get_model_weights(name)[member]


def torchvision_backbone(name: str, weights: str, side: int) -> tuple[nn.Module, int]:
    """A torchvision classifier without its last linear layer, and the width of what goes into that layer."""
    published = torchvision_weights(name, weights)
    size = published.meta["min_size"][0]
    if name.startswith(FIXED_SIZE) and side != size:
        raise ValueError(
            f"network.name={name} takes images of {size} x {size} pixels alone, and data.crop is {side}: leave "
            "data.resize and data.crop to the backbone (--set data.resize=none data.crop=none), or choose one that "
            "takes any size, such as swin_t, convnext_tiny or resnet50"
        )
    options = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    models = _models()
    if weights == "imagenet" or weights in torchvision_members(name):
        options.pop("init_weights", None)
        try:
            model = models.get_model(name, weights=published, **options)
        except OSError as error:  # URLError is one
            raise ValueError(
                f"cannot download the ImageNet weights of {name} ({error}). On a machine without internet fetch "
                f"{published.url} elsewhere, and give the file: --set network.weights=FILE; "
                "or start from random weights: --set network.weights=none"
            ) from error
    else:
        model = models.get_model(name, weights=None, **options)
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
