"""The network: heads removed from any backbone, local weights, and errors that say what to do."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from fastget.config import NetworkConfig, make_config
from fastget.networks.backbones import torchvision_backbone
from fastget.networks.network import Dropout, build_network


def config(**options: Any) -> NetworkConfig:
    return NetworkConfig(**{"name": "resnet18", "weights": "none", "bottleneck_dim": 32, **options})


def test_the_weight_norm_heads_weight_is_the_effective_one() -> None:
    network = build_network(NetworkConfig(name="small", weights="none", head="weight-norm"), 7, 32)
    classifier = network.classifier
    assert isinstance(classifier, nn.Linear)
    g, v = (classifier.get_parameter(f"parametrizations.weight.original{i}") for i in (0, 1))
    assert (g.shape, v.shape) == ((7, 1), (7, 256))
    torch.testing.assert_close(g, v.norm(dim=1, keepdim=True))  # the layer's own start
    assert not classifier.bias.any()
    with torch.no_grad():
        g.mul_(3)
        v.mul_(2)
    f = torch.randn(4, 256, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(classifier.weight, g * v / v.norm(dim=1, keepdim=True))
    torch.testing.assert_close(classifier(f), f @ (g * v / v.norm(dim=1, keepdim=True)).T)
    again = build_network(NetworkConfig(name="small", weights="none", head="weight-norm"), 7, 32)
    again.load_state_dict(network.state_dict())
    assert torch.equal(again.classifier.weight, classifier.weight)


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("resnet18", 512),
        ("resnet34", 512),
        ("mobilenet_v2", 1280),
        ("alexnet", 4096),
        ("vit_b_16", 768),
        ("swin_t", 768),
        ("convnext_tiny", 768),
    ],
)
def test_head_is_removed(name: str, width: int) -> None:
    with torch.device("meta"):
        network = build_network(config(name=name), 7).eval()
        images = torch.zeros(2, 3, 224, 224)
        assert network.backbone(images).shape == (2, width)
        features, logits = network(images)
    assert network.bottleneck[0].in_features == width
    assert (features.shape, logits.shape) == ((2, 32), (2, 7))


def test_bottleneck_norm_is_an_option() -> None:
    assert len(build_network(config(name="small"), 3, 28).bottleneck) == 1
    assert isinstance(build_network(config(name="small", bottleneck_norm=True), 3, 28).bottleneck[1], nn.BatchNorm1d)


def test_relu_and_dropout_are_options() -> None:
    """Dropout keeps the mean square, draws anew in each call, and rests in evaluation."""
    network = build_network(config(name="small", bottleneck_norm=True, bottleneck_relu=True), 3, 28)
    assert [type(layer) for layer in network.bottleneck[1:]] == [nn.BatchNorm1d, nn.ReLU]
    dropout = build_network(config(name="small", bottleneck_dropout=0.25), 3, 28).bottleneck[1]
    assert isinstance(dropout, Dropout)
    x = torch.ones(400, 500)
    first, second = dropout(x), dropout(x)
    assert (first == 0).float().mean().item() == pytest.approx(0.25, abs=0.005)
    assert (first == second).float().mean().item() == pytest.approx(0.25**2 + 0.75**2, abs=0.005)
    torch.testing.assert_close(first[first > 0].unique(), torch.tensor([0.75**-0.5]))
    assert first.square().mean().item() == pytest.approx(1, abs=0.01)
    assert dropout.eval()(x) is x


def test_dropout_goes_on_where_a_checkpoint_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    dropout, other, x = Dropout(0.5), Dropout(0.5), torch.ones(8, 50)
    dropout(x)
    other.load_state_dict(dropout.state_dict())
    wanted = dropout(x)
    assert not torch.equal(wanted, dropout(x))
    half = copy.deepcopy(other)
    assert torch.equal(other(x), wanted)
    monkeypatch.setattr("fastget.networks.network.this_rank", lambda: 1)
    assert torch.equal(half(x[4:]), wanted[4:])  # a rank draws its part of the batch's


@pytest.mark.parametrize("side", [8, 28, 32, 45])
def test_small_network_takes_small_images(side: int) -> None:
    features, logits = build_network(config(name="small"), 10, side)(torch.randn(2, 3, side, side))
    assert (features.shape, logits.shape) == ((2, 32), (2, 10))


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "side", "message"),
    [
        ({"name": "squeezenet1_1"}, 224, "no linear head"),
        ({"name": "resnet5o"}, 224, r"did you mean .*resnet50"),
        ({"name": "small", "weights": "imagenet"}, 224, "small has no ImageNet weights"),
        ({"name": "small"}, 7, "at least 8 pixels"),
        ({"name": "alexnet"}, 28, "alexnet cannot take images of 28 x 28 pixels"),
        ({"name": "inception_v3"}, 64, "inception_v3 cannot take images of 64 x 64 pixels"),
        ({"name": "vit_b_16"}, 28, r"vit_b_16 takes images of 224 x 224 pixels alone, and data\.crop is 28"),
        ({"name": "vit_h_14"}, 28, r"vit_h_14 takes images of 518 x 518 pixels alone, and data\.crop is 28"),
        ({"name": "maxvit_t"}, 28, r"maxvit_t takes images of 224 x 224 pixels alone, and data\.crop is 28"),
    ],
)
def test_what_cannot_be_built(options: dict[str, str], side: int, message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        build_network(config(**options), 7, side)


def test_a_bottleneck_that_no_memory_holds() -> None:
    with pytest.raises(ValueError, match=r"bottleneck_dim must be .*at most 65536, got 1000000000000"):
        make_config({"network.bottleneck_dim": 10**12})


def test_a_torchvision_of_another_torch_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ValueError, match=r"torchvision cannot be imported .* goes with torch .*docs/install\.md"):
        torchvision_backbone("resnet18", "none", 224)
    build_network(config(name="small"), 3, 28)  # which needs none


# --- weights -------------------------------------------------------------------------------------


def test_local_weights(tmp_path: Path) -> None:
    model = torchvision.models.resnet18(weights=None)
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, tmp_path / "w.pt")
    loaded = build_network(config(weights=str(tmp_path / "w.pt")), 5).backbone.state_dict()
    assert all(torch.equal(loaded[k], v) for k, v in model.state_dict().items() if not k.startswith("fc."))


def resnet(**changes: Any) -> dict[str, Any]:
    """The state of a classifier, but for some entries: others, or, as None, missing."""
    state = {**torchvision.models.resnet18(weights=None).state_dict(), **changes}
    return {name: value for name, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, r"no file .*w\.pt; give imagenet, none, a file"),
        (lambda: torchvision.models.mobilenet_v2(weights=None).state_dict(), "does not fit this network.*missing"),
        (lambda: resnet(**{"conv1.weight": None}), r"does not fit this network: 1 entries are missing \(conv1\.weight"),
        (lambda: resnet(**{"conv1.weight": torch.zeros(3)}), r"1 entries have another shape \(conv1\.weight\)"),
        ("not weights", "is a text file, not a file of weights"),
        (lambda: torch.zeros(3), "holds a Tensor"),
        (lambda: {"state_dict": nn.Linear(2, 2)}, "not a file of weights alone"),
    ],
    ids=["nowhere", "other", "lacking", "shapes", "text", "tensor", "pickle"],
)
def test_wrong_weights_are_named(tmp_path: Path, content: Any, expected: str) -> None:
    if isinstance(content, str):
        (tmp_path / "w.pt").write_text(content)
    elif content:
        torch.save(content(), tmp_path / "w.pt")
    with pytest.raises(ValueError, match=expected):
        build_network(config(weights=str(tmp_path / "w.pt")), 5)


@pytest.mark.parametrize(
    ("name", "weights", "found"),
    [("resnet18", "imagenet", "IMAGENET1K_V1"), ("resnet50", "IMAGENET1K_V1", "IMAGENET1K_V1")],
)
def test_published_weights_come_from_torchvisions_enum(
    monkeypatch: pytest.MonkeyPatch, name: str, weights: str, found: str
) -> None:
    asked = []

    def fetched(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(self.name)
        return torchvision.models.get_model(name, weights=None).state_dict()

    def offline(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise OSError("no route to host")

    enum = torchvision.models.get_model_weights(name)
    monkeypatch.setattr(enum, "get_state_dict", fetched)
    build_network(config(name=name, weights=weights), 5)
    assert asked == [found]
    monkeypatch.setattr(enum, "get_state_dict", offline)
    with pytest.raises(ValueError, match=r"cannot download .*network\.weights=FILE"):
        build_network(config(name=name, weights=weights), 5)
