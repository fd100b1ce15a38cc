"""What GeT says to tensors that it cannot use: what was expected, what was found, and what to do."""

from __future__ import annotations

import math
from numbers import Integral

import torch
from torch import Tensor


def check_count(name: str, value: int, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_features(features: Tensor, feature_dim: int, finite_in: Tensor | None) -> None:
    """`finite_in`: GeT's health, whose step is named where a number is not finite; None: do not look."""
    if features.ndim != 2 or features.shape[1] != feature_dim:
        raise ValueError(
            f"features must have shape (batch, {feature_dim}), got {tuple(features.shape)}: "
            f"GeT was built with feature_dim={feature_dim}"
        )
    if not features.is_floating_point():
        raise ValueError(f"features must be floating point, got {features.dtype}")
    if len(features) == 0:
        raise ValueError("features hold no row: a batch needs at least one image")
    if finite_in is None or math.isfinite(float(features.detach().sum())):
        return  # the sum of finite numbers is, but for an overflow: one pass where nothing is wrong
    if bad := not_finite(features):
        raise ValueError(
            f"non-finite features in step {int(finite_in[0])}: rows {bad} of {len(features)}. "
            "The memory is as it was. Lower the learning rate, or look at those images"
        )


def check_weight(weight: Tensor, expected: tuple[int, int]) -> Tensor:
    if tuple(weight.shape) != expected:
        raise ValueError(
            f"the classifier's weight must have shape {expected} (classes, feature width), "
            f"got {tuple(weight.shape)}: build GeT with the classifier's num_classes and feature_dim"
        )
    return weight


def check_source_means(means: Tensor, expected: tuple[int, int]) -> None:
    if tuple(means.shape) != expected or not means.is_floating_point():
        raise ValueError(
            f"source_means must be floating point, shape {expected} (classes, feature width), "
            f"got {means.dtype} {tuple(means.shape)}"
        )
    if bad := not_finite(means):
        raise ValueError(
            f"source_means are not finite in classes {bad}: a class without a "
            "source image has no mean; give it zeros, which no image is nearest to"
        )


def check_labels(name: str, labels: Tensor, rows: int, classes: int, in_range: bool) -> None:
    if labels.ndim != 1 or len(labels) != rows or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"{name} must be {rows} integer classes, shape ({rows},), got {labels.dtype} {tuple(labels.shape)}"
        )
    if in_range and rows:
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= classes:
            raise ValueError(f"{name} must lie in [0, {classes - 1}], got {low} to {high}")


def not_finite(rows: Tensor) -> str:
    """The first rows with a number that is not finite, as a list in words; empty if there are none."""
    if bool(torch.isfinite(rows).all()):
        return ""
    bad = (~torch.isfinite(rows).all(1)).nonzero().flatten().tolist()
    return f"{bad[:8]}{' ...' if len(bad) > 8 else ''}"
