"""What torchvision's backbones want of their images, and how it gets into a configuration."""

from pathlib import Path
from typing import Any

import pytest

import fastget
from fastget.common.preprocessing import MEAN, STD, Preprocessing
from fastget.config import NetworkConfig, changed
from fastget.networks.preprocessing import filled, preprocessing_of
from fastget.networks.provenance import source_of


def config(**settings: Any) -> fastget.Config:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return fastget.make_config({"data.name": "folder", "network.weights": "none", **given})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("small", Preprocessing()),
        ("resnet50", Preprocessing(256, 224, "bilinear", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        ("vit_b_16", Preprocessing(256, 224, "bilinear")),
        ("convnext_tiny", Preprocessing(256, 224, "bilinear")),
        ("swin_t", Preprocessing(256, 224, "bicubic")),
        ("inception_v3", Preprocessing(342, 299, "bilinear")),
        ("efficientnet_v2_l", Preprocessing(549, 480, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))),
    ],
)
def test_torchvisions(name: str, expected: Preprocessing) -> None:
    assert preprocessing_of(NetworkConfig(name=name)) == expected
    assert filled(config(network__name=name)).data.preprocessing == expected


def test_other_published_weights_by_their_name() -> None:
    other = NetworkConfig(name="vit_b_16", weights="IMAGENET1K_SWAG_E2E_V1")
    assert preprocessing_of(other) == Preprocessing(439, 384, "bicubic")
    assert source_of(other) == "IMAGENET1K_SWAG_E2E_V1"
    assert source_of(NetworkConfig(name="resnet50")) == "IMAGENET1K_V2"
    assert source_of(NetworkConfig(name="resnet50", weights="none")) == "random"
    assert source_of(NetworkConfig(name="small", weights="a/b/w.pt")) == "w.pt"


def test_what_is_set_stays() -> None:
    given = config(data__resize=100, data__crop=90, data__interpolation="bicubic", data__mean="0.1,0.2,0.3")
    assert filled(given).data.preprocessing == Preprocessing(100, 90, "bicubic", (0.1, 0.2, 0.3), STD)
    digits = filled(fastget.make_config())
    assert digits.data.preprocessing == Preprocessing(32, 28, "bilinear", MEAN, STD)
    assert filled(digits) is digits


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"network__name": "resnet50", "data__crop": 112}, (128, 112)),
        ({"network__name": "resnet50", "data__resize": 300}, (300, 224)),
        ({"network__name": "timm/vit_small_patch14_dinov2.lvd142m", "data__crop": 224}, (224, 224)),
    ],
)
def test_the_square_keeps_its_ratio_to_the_crop(settings: dict[str, Any], sizes: tuple[int, int]) -> None:
    found = filled(config(**settings)).data
    assert (found.resize, found.crop) == sizes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data__resize": 100}, r"data\.crop \(224\) must not exceed data\.resize \(100\)"),
        ({"data__mean": "0.5"}, r"data\.mean must be three numbers, one a channel, got \(0\.5,\)"),
        ({"data__std": "0.5,0,0.5"}, r"data\.std must be above 0, got 0"),
        (
            {"data__interpolation": "cubic"},
            r"data\.interpolation must be one of bilinear, bicubic or none, got 'cubic'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled(config(**settings))
    with pytest.raises(ValueError, match="is not in the configuration yet"):
        config().data.preprocessing  # noqa: B018  # the look-up is the test


# --- runs that are stored ------------------------------------------------------------------------


def test_a_runs_file_does_not_carry_its_backbones_values_to_another(tmp_path: Path) -> None:
    """The mean of one under the weights of another is the error that costs the most and says the least."""
    file = tmp_path / "config.yaml"
    file.write_text(filled(config(network__name="timm/vit_tiny_patch16_224")).to_yaml())
    again = filled(fastget.make_config(file=file))
    assert again.data.preprocessing == Preprocessing(248, 224, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    other = filled(fastget.make_config({"network.name": "resnet50"}, file=file))
    assert other.data.preprocessing == Preprocessing()
    given = filled(fastget.make_config({"network.name": "resnet50", "data.crop": 200}, file=file))
    assert (given.data.resize, given.data.crop) == (229, 200)
    file.write_text("data: {name: folder, resize: 100, crop: 90}")  # by hand, for whatever backbone
    assert filled(fastget.make_config({"network.name": "resnet50"}, file=file)).data.resize == 100


def test_a_stored_run_without_them_had_the_constants() -> None:
    now = filled(config(network__name="resnet50"))
    stored = now.to_dict()
    assert changed(stored, now) == []
    for name in ("interpolation", "mean", "std"):
        del stored["data"][name]
    assert changed(stored, now) == []
    swin = filled(config(network__name="swin_t"))
    stored = swin.to_dict()
    del stored["data"]["interpolation"]
    assert changed(stored, swin) == ["data.interpolation ('bilinear' there, 'bicubic' here)"]
