"""Backbones, where torchvision is not as it should be."""

import sys

import pytest

from fastget.config import NetworkConfig
from fastget.networks.backbones import torchvision_backbone
from fastget.networks.network import build_network


def test_a_torchvision_of_another_torch_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ValueError, match=r"torchvision cannot be imported .* goes with torch .*docs/install\.md"):
        torchvision_backbone("resnet18", "none", 224)
    build_network(NetworkConfig(name="small", weights="none"), 3, 28)  # which needs none
