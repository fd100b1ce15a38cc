"""Counting a network without content: operations, parameters, what a backward pass needs again."""

import pytest

from fastget.config import NetworkConfig
from fastget.networks.flops import count_network

SMALL = NetworkConfig(name="small", weights="none", bottleneck_dim=4)


def test_a_small_network_by_hand() -> None:
    """Images of 8 pixels: stages of 16, 32 and 64 channels on 8, 4 and 2 pixels, each pooled, then a branch."""
    counted = count_network(SMALL, 3, 8)
    assert counted is not None
    convolutions = sum(2 * 9 * a * b * side**2 for a, b, side in
                       ((3, 16, 8), (16, 16, 4), (16, 32, 4), (32, 32, 2), (32, 64, 2), (64, 64, 1)))  # fmt: skip
    heads = 2 * (64 * 4 + 4 * 3)
    assert counted.flops == convolutions + heads
    weights = sum(9 * a * b + b for a, b in ((3, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64))) + 3
    assert counted.parameters == weights + 64 * 4 + 4 + 4 * 3 + 3
    assert counted.head_parameters == 64 * 4 + 4 + 4 * 3 + 3
    # each stage: what its convolution makes, the places that are pooled, and on the pooled side three tensors: the
    # pooled after relu, the branch after relu, and their sum, which is the next stage's input
    made = 16 * 64 + 32 * 16 + 64 * 4
    pooled = 16 * 16 + 32 * 4 + 64 * 1
    assert counted.saved == made + 3 * pooled + 4  # and the bottleneck's features
    assert counted.saved_bytes == 8 * pooled
    assert counted.largest == made - 32 * 16 - 64 * 4


def test_resnet50_is_as_published() -> None:
    counted = count_network(NetworkConfig(bottleneck_dim=256), 1000, 224)
    assert counted is not None
    assert counted.flops == pytest.approx(2 * 4.09e9, rel=0.01)  # multiply-adds of torchvision's page, without its head
    assert counted.parameters == 25_557_032 - 2_049_000 + 2048 * 256 + 256 + 256 * 1000 + 1000


def test_it_is_counted_once() -> None:
    assert count_network(SMALL, 3, 8) is count_network(SMALL, 3, 8)
