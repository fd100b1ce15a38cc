"""timm's models as backbones: by their tag, with weights of a local file, and errors that say what to do."""

import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from fastget.common.preprocessing import MEAN, STD, Preprocessing
from fastget.config import NetworkConfig
from fastget.networks.network import Network, build_network
from fastget.networks.preprocessing import preprocessing_of
from fastget.networks.provenance import digest_of, other_start, record_of

HALF = (0.5, 0.5, 0.5)


def config(name: str, weights: str = "none") -> NetworkConfig:
    return NetworkConfig(name=f"timm/{name}", weights=weights, bottleneck_dim=8)


def width(network: Network) -> int:
    return int(network.bottleneck[0].in_features)  # type: ignore[arg-type]  # an nn.Linear


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_small_patch14_dinov2.lvd142m", Preprocessing(518, 518, "bicubic", MEAN, STD)),
        ("vit_tiny_patch16_224", Preprocessing(248, 224, "bicubic", HALF, HALF)),
        ("resnet50.tv_in1k", Preprocessing(256, 224, "bilinear", MEAN, STD)),
        ("resnet10t", Preprocessing(201, 176, "bicubic", MEAN, STD)),
        (
            "vit_base_patch16_clip_224.openai",
            Preprocessing(
                248, 224, "bicubic", (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
            ),
        ),
    ],
)
def test_a_tag_tells_its_preprocessing_without_being_built(
    name: str, expected: Preprocessing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timm, "create_model", None)
    assert preprocessing_of(config(name)) == expected


@pytest.mark.parametrize(
    ("name", "side", "pooled"),
    [("test_vit", 160, 64), ("test_vit", 32, 64), ("test_resnet", 32, 96), ("mobilenetv3_small_050", 32, 1024)],
)
def test_the_head_is_removed(name: str, side: int, pooled: int) -> None:
    """Also where the pooled width is another than that of the last stage; and images of another size than the tag's."""
    network = build_network(config(name), 5, side).eval()
    images = torch.randn(2, 3, side, side)
    assert width(network) == pooled
    assert network.backbone(images).shape == (2, pooled)
    assert network(images)[1].shape == (2, 5)


def test_pooling_is_timms() -> None:
    """A vision transformer's class token or mean, as the model has it."""
    backbone: Any = build_network(config("test_vit"), 5, 32).eval().backbone
    images = torch.randn(2, 3, 32, 32)
    own = timm.create_model("test_vit", num_classes=0, img_size=32).eval()
    own.load_state_dict(backbone.state_dict())
    assert torch.equal(backbone(images), own(images))
    assert torch.equal(backbone(images), backbone.forward_head(backbone.forward_features(images), pre_logits=True))


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("resnet5O", "did you mean timm/resnet50, "),
        ("vit_tiny_patch16_225", "timm/vit_tiny_patch16_224"),
        ("resnet50.a1_in1kk", "timm/resnet50.a1_in1k"),
        ("qqqqqq", "timm.list_pretrained()"),
    ],
)
def test_a_wrong_tag_gets_the_nearest_ones(name: str, offered: str) -> None:
    for ask in (lambda: preprocessing_of(config(name)), lambda: build_network(config(name), 5)):
        with pytest.raises(ValueError, match=r"unknown network\.name") as told:
            ask()
        assert offered in str(told.value)


def test_a_missing_timm_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r"network.name=timm/resnet50 needs timm.*pip install 'fastget\[timm\]'"):
        preprocessing_of(config("resnet50"))


@pytest.mark.parametrize(("side", "better"), [(10, 16), (50, 48), (100, 96)])
def test_patches_that_do_not_fill_an_image_are_refused(side: int, better: int) -> None:
    with pytest.raises(ValueError, match=rf"patches of 16 pixels, and data.crop={side}.*use data.crop={better}"):
        build_network(config("test_vit"), 5, side)


def test_what_no_loader_can_make_is_refused() -> None:
    with pytest.raises(ValueError, match=r"wants images of 3 channels and 1024 x 768 pixels"):
        preprocessing_of(config("vit_base_patch16_sapiens2.fb"))


# --- weights -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """A model with its head, as another program would save it."""
    torch.manual_seed(5)
    return timm.create_model("test_vit", num_classes=7)


def save(model: nn.Module, file: Path) -> str:
    if file.suffix == ".safetensors":
        save_file(model.state_dict(), file)
    else:
        torch.save({"state_dict": {f"module.{name}": value for name, value in model.state_dict().items()}}, file)
    return str(file)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_weights_of_a_local_file(trained: nn.Module, suffix: str, tmp_path: Path) -> None:
    settings = config("test_vit", save(trained, tmp_path / f"w{suffix}"))
    backbone = build_network(settings, 5, 160).backbone
    found = backbone.state_dict()
    assert found
    assert all(torch.equal(value, trained.state_dict()[name]) for name, value in found.items())
    assert record_of(settings, backbone) == {
        "name": "timm/test_vit", "weights": f"w{suffix}", "sha256": digest_of(backbone),
    }  # fmt: skip


def test_weights_of_another_image_size_are_resized(trained: nn.Module, tmp_path: Path) -> None:
    """The position embedding alone depends on it, and timm knows how."""
    found = build_network(config("test_vit", save(trained, tmp_path / "w.pt")), 5, 64).backbone.state_dict()
    given = trained.state_dict()
    assert found["pos_embed"].shape != given["pos_embed"].shape
    assert all(torch.equal(value, given[name]) for name, value in found.items() if name != "pos_embed")


def test_a_file_of_another_model_is_told_in_a_sentence(tmp_path: Path) -> None:
    """timm's own conversion fails at it, in words of its own."""
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"entries are missing .*Is network\.name the same\?"):
        build_network(config("test_vit", str(tmp_path / "w.safetensors")), 5, 160)


def test_without_internet_a_local_file_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "nowhere")
    told = r"cannot load the weights test_vit\.r160_in1k .*huggingface\.co/timm/test_vit\.r160_in1k.*weights=FILE"
    with pytest.raises(ValueError, match=told):
        build_network(config("test_vit", "imagenet"), 5, 160)


def test_the_published_weights_are_those_of_the_tag(monkeypatch: pytest.MonkeyPatch, trained: nn.Module) -> None:
    asked = []

    def create(name: str, **options: Any) -> nn.Module:
        asked.append((name, options))
        return trained

    monkeypatch.setattr(timm, "create_model", create)
    settings = config("test_vit", "imagenet")
    backbone = build_network(settings, 5, 160).backbone
    assert asked == [("test_vit.r160_in1k", {"pretrained": True, "num_classes": 0})]
    assert record_of(settings, backbone)["weights"] == "test_vit.r160_in1k"


def test_other_weights_are_told() -> None:
    then = {"name": "timm/test_vit", "weights": "w.pt", "sha256": "a" * 64}
    assert other_start(then, then) == ""
    assert other_start({}, then) == ""  # of an earlier version
    now = then | {"sha256": "b" * 64}
    assert "sha256 aaaaaaaaaaaa" in other_start(then, now)
    assert "sha256 bbbbbbbbbbbb" in other_start(then, now)
    assert other_start(then, now | {"weights": "random"}) == ""
