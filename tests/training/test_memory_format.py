"""Where the network's weights lie channels last: by rule, and an older run's as they lay."""

from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from fastget.config import Config, TrainConfig, make_config
from fastget.training.build import lies_channels_last

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("device", "precision", "choice", "last"),
    [
        (CPU, "float32", "auto", False),  # no gain that would be worth other bits
        (CPU, "float16", "auto", True),
        (CPU, "float16", "gpu", False),
        (GPU, "float32", "auto", True),
        (GPU, "float32", "gpu", True),
        (CPU, "float32", "always", True),
        (GPU, "float32", "never", False),
    ],
)
def test_the_rule(device: torch.device, precision: str, choice: str, last: bool) -> None:
    config = TrainConfig(precision=precision, channels_last=choice)  # type: ignore[arg-type]
    assert lies_channels_last(config, device) == last


def test_an_older_run_s_weights_lie_as_they_lay(tmp_path: Path) -> None:
    stored = Config().to_dict()
    del stored["train"]["channels_last"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored), encoding="utf-8")
    assert make_config(file=tmp_path / "config.yaml").train.channels_last == "gpu"


def test_the_format_changes_no_value() -> None:
    """Weights channels last: the same network in float64, to rounding."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).double()
    images = torch.randn(2, 9, 9, 3, dtype=torch.float64).permute(0, 3, 1, 2)
    before = layers(images)
    after = layers.to(memory_format=torch.channels_last)(images)
    assert torch.allclose(before, after, rtol=1e-12)
