"""Values under a name, between the defaults and the recipe: those of a data set, and train.preset's on top of them."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "digits": {
        "data.source": "fonts",
        "data.target": "handwritten",
        "data.resize": 32,
        "data.crop": 28,
        "data.flip": False,
        "network.name": "small",
        "network.weights": "none",
        "optim.backbone_lr_scale": 1.0,
        "optim.lr": 0.03,
        "train.batch_size": 64,
        "train.max_steps": 500,
        "train.threads": 1,  # so small a network gains nothing from more
        "cdan.weight": 0.1,  # at 1 features without a norm grow until the training loss is lost
    },
    "office31": {"data.source": "amazon", "data.target": "dslr", "data.pda_classes": 10, "train.epochs": 100},
    "office-home": {"data.source": "Art", "data.target": "Clipart", "data.pda_classes": 25, "train.epochs": 50},
    "visda2017": {"data.source": "train", "data.target": "validation", "data.pda_classes": 6, "train.epochs": 1},
    "domainnet126": {
        "data.source": "real",
        "data.target": "clipart",
        "data.pda_classes": 40,
        "network.name": "resnet34",
        "train.epochs": 20,
    },
    "domainnet": {"data.source": "real", "data.target": "clipart", "train.epochs": 20},
    "pacs": {"data.source": "photo", "data.target": "sketch", "train.epochs": 50},
    "features": {
        "network.bottleneck_norm": True,  # without it entropies run away: MinEnt ends in one class (docs/features.md)
        "train.epochs": 20,
        "train.threads": 1,  # two linear layers gain nothing from more
    },
}

QUICK_TRAIN: dict[str, Any] = {
    "train.batch_size": 16,
    "train.max_steps": 150,
    "train.eval_every": 75,  # two, and the look at the target that a method's start may need
    "train.log_every": 10,  # some seconds apart
}
# of the images: few, small, and never differentiated through. Two cores manage some thousands in five minutes
QUICK_IMAGES: dict[str, Any] = {
    "data.limit": 1000,
    "data.crop": 112,
    "network.name": "resnet18",
    "optim.backbone_lr_scale": 0.0,
}
SMALL_ALREADY = ("digits", "features")  # they have a network of their own, or none


def of_preset(name: str, data: str) -> dict[str, Any]:
    """The values of train.preset for a data set."""
    if name == "none":
        return {}
    return QUICK_TRAIN if data in SMALL_ALREADY else {**QUICK_TRAIN, **QUICK_IMAGES}
