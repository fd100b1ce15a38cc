"""What GeT says to tensors that it cannot use: what was expected, what was found, and what to do."""

from __future__ import annotations

import math
from numbers import Integral

import torch
from torch import Tensor


def check_count(name: str, value: int, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_features(features: Tensor, feature_dim: int, health: Tensor | None) -> None:
    """`health`: GeT's, whose step is named where a number is not finite; None: do not look."""
    if features.ndim != 2 or features.shape[1] != feature_dim or not len(features) or not features.is_floating_point():
        raise ValueError(
            f"features must be floating point of shape (batch of at least 1, {feature_dim}), as GeT was built with "
            f"feature_dim={feature_dim}; got {features.dtype} of shape {tuple(features.shape)}"
        )
    if health is not None and not math.isfinite(float(features.detach().sum())) and (bad := not_finite(features)):
        raise ValueError(  # a sum of finite numbers may overflow, so the rows have the last word
            f"non-finite features in step {int(health[0])}: rows {bad} of {len(features)}. "
            "The memory is as it was. Lower the learning rate, or look at those images"
        )


def check_matrix(name: str, x: Tensor, expected: tuple[int, int]) -> Tensor:
    if tuple(x.shape) != expected or not x.is_floating_point():
        raise ValueError(
            f"{name} must be floating point of shape {expected} (classes, feature width), "
            f"got {x.dtype} of shape {tuple(x.shape)}: build GeT with the classifier's num_classes and feature_dim"
        )
    return x


def check_labels(name: str, labels: Tensor, rows: int, classes: int, in_range: bool) -> None:
    if labels.shape != (rows,) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"{name} must be {rows} integer classes, shape ({rows},), got {labels.dtype} {tuple(labels.shape)}"
        )
    low, high = (int(labels.min()), int(labels.max())) if in_range and rows else (0, 0)
    if low < 0 or high >= classes:
        raise ValueError(f"{name} must lie in [0, {classes - 1}], got {low} to {high}")


def not_finite(rows: Tensor) -> str:
    """The first rows with a number that is not finite, as a list in words; empty if there are none."""
    bad = (~torch.isfinite(rows).all(1)).nonzero().flatten().tolist()
    return f"{bad[:8]}{' ...' if len(bad) > 8 else ''}" if bad else ""
