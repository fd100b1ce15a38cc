"""The network: heads removed from any backbone, local weights, and errors that say what to do."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from fastget.config import NetworkConfig, make_config
from fastget.networks.network import build_network


def config(**options: Any) -> NetworkConfig:
    return NetworkConfig(**{"weights": "none", "bottleneck_dim": 32, **options})


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("resnet18", 512),
        ("resnet34", 512),
        ("mobilenet_v2", 1280),
        ("squeezenet1_1", 0),
        ("vit_b_16", 768),
        ("alexnet", 4096),
    ],
)
def test_head_is_removed(name: str, width: int) -> None:
    if not width:
        with pytest.raises(ValueError, match="no linear head"):
            build_network(config(name=name), 7)
        return
    with torch.device("meta"):
        network = build_network(config(name=name), 7)
        features, logits = network.eval()(torch.zeros(2, 3, 224, 224))
    first = network.bottleneck[0]
    assert isinstance(first, nn.Linear)
    assert first.in_features == width
    assert features.shape == (2, 32)
    assert logits.shape == (2, 7)


def test_bottleneck_norm_is_an_option() -> None:
    assert len(build_network(config(name="small"), 3, 28).bottleneck) == 1
    assert isinstance(build_network(config(name="small", bottleneck_norm=True), 3, 28).bottleneck[1], nn.BatchNorm1d)


@pytest.mark.parametrize("side", [8, 28, 32, 45])
def test_small_network_takes_small_images(side: int) -> None:
    features, logits = build_network(config(name="small"), 10, side)(torch.randn(2, 3, side, side))
    assert features.shape == (2, 32)
    assert logits.shape == (2, 10)


def test_local_weights(tmp_path: Path) -> None:
    model = torchvision.models.resnet18(weights=None)
    file = tmp_path / "w.pt"
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, file)
    network = build_network(config(name="resnet18", weights=str(file)), 5)
    loaded = network.backbone.state_dict()
    assert all(torch.equal(loaded[k], v) for k, v in model.state_dict().items() if not k.startswith("fc."))


@pytest.mark.parametrize("kind", ["missing", "other", "text", "tensor", "pickle"])
def test_wrong_weights_are_named(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "w.pt"
    if kind == "other":
        torch.save(torchvision.models.mobilenet_v2(weights=None).state_dict(), file)
    elif kind == "text":
        file.write_text("not weights")
    elif kind == "tensor":
        torch.save(torch.zeros(3), file)
    elif kind == "pickle":
        torch.save({"state_dict": nn.Linear(2, 2)}, file)
    expected = {
        "missing": "no file",
        "other": "does not fit this network.*missing",
        "text": "not a file of weights",
        "tensor": "holds a Tensor",
        "pickle": "not a file of weights alone",
    }[kind]
    with pytest.raises(ValueError, match=expected):
        build_network(config(name="resnet18", weights=str(file)), 5)


def test_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"did you mean .*resnet50"):
        build_network(config(name="resnet5o"), 5)
    with pytest.raises(ValueError, match="small has no ImageNet weights"):
        build_network(config(name="small", weights="imagenet"), 5)
    with pytest.raises(ValueError, match="at least 8 pixels"):
        build_network(config(name="small"), 5, 7)


def test_imagenet_weights_come_from_torchvisions_enum(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(self.url)
        return torchvision.models.resnet18(weights=None).state_dict()

    monkeypatch.setattr(torchvision.models.ResNet18_Weights, "get_state_dict", get_state_dict)
    build_network(config(name="resnet18", weights="imagenet"), 5)
    assert asked == [torchvision.models.ResNet18_Weights.DEFAULT.url]


def test_no_internet_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise OSError("no route to host")

    monkeypatch.setattr(torchvision.models.ResNet18_Weights, "get_state_dict", get_state_dict)
    with pytest.raises(ValueError, match=r"cannot download .*network\.weights=FILE"):
        build_network(config(name="resnet18", weights="imagenet"), 5)


@pytest.mark.parametrize(("name", "side"), [("alexnet", 28), ("inception_v3", 64)])
def test_images_of_a_size_that_a_backbone_cannot_take(name: str, side: int) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=rf"{name} cannot take images of {side} x {side} pixels"):
        build_network(config(name=name), 7, side)


def test_a_bottleneck_that_no_memory_holds() -> None:
    with pytest.raises(ValueError, match=r"bottleneck_dim must be .*at most 65536, got 1000000000000"):
        make_config({"network.bottleneck_dim": 10**12})
