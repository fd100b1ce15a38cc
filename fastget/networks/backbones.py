"""Backbones: torchvision's classifiers without their heads, and weights from a local file."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastget.common.text import and_more, close_matches


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


def torchvision_backbone(name: str, imagenet: bool) -> tuple[nn.Module, int]:
    """A torchvision classifier without its last linear layer, and the width of what goes into that layer."""
    models = _models()
    names = models.list_models(module=models)
    if name not in names:
        close = close_matches(name, [*names, "small"], most=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "see torchvision.models.list_models()"
        raise ValueError(f"unknown network.name {name!r}: {hint}")
    options = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    if imagenet:
        weights = models.get_model_weights(name).DEFAULT
        options.pop("init_weights", None)
        try:
            model = models.get_model(name, weights=weights, **options)
        except OSError as error:  # URLError is one
            raise ValueError(
                f"cannot download the ImageNet weights of {name} ({error}). On a machine without internet fetch "
                f"{weights.url} elsewhere, and give the file: --set network.weights=FILE; "
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
