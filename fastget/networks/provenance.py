"""What a run tells of its backbone: its name, where its weights came from, and what they were."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from fastget.config import NetworkConfig
from fastget.networks.backbones import torchvision_members, torchvision_weights
from fastget.networks.timm_backbones import PREFIX, timm_tag

RANDOM = "random"
Provenance = dict[str, str]  # name, weights, sha256


def record_of(network: NetworkConfig, backbone: nn.Module) -> Provenance:
    """Of a backbone as a run starts from it."""
    return {"name": network.name, "weights": source_of(network), "sha256": digest_of(backbone)}


def source_of(network: NetworkConfig) -> str:
    """Where the weights are from: torchvision's name for them, timm's tag, a file's name, or random."""
    if network.weights == "none":
        return RANDOM
    if network.name.startswith(PREFIX):
        return timm_tag(network.name) if network.weights == "imagenet" else Path(network.weights).name
    if network.name != "small" and network.weights in ("imagenet", *torchvision_members(network.name)):
        return str(torchvision_weights(network.name, network.weights).name)
    return Path(network.weights).name


def digest_of(module: nn.Module) -> str:
    """A sha256 of all its tensors, by name."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def other_start(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """In words, that a run began with other weights than its configuration names now; empty if it did not.

    Random ones may differ with the machine."""
    if not then or now["weights"] == RANDOM or then["sha256"] == now["sha256"]:
        return ""
    return (
        f"the run began with {then['name']} ({then['weights']}, sha256 {then['sha256'][:12]}), and network.weights is "
        f"now {now['weights']}, sha256 {now['sha256'][:12]}: it goes on from its checkpoint, and its record stays"
    )
