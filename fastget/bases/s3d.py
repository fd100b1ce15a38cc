"""S3D's formulas (Yoon, Kang and Cho, WACV 2022): semi-supervised adaptation by styles, and by distillation of what the
network says of a restyled image.

Shapes: B images, C classes, maps (B, ch, H, W) of a residual stage.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fastget.bases.ape import ape_consistency
from fastget.bases.base import widened
from fastget.common.ranks import global_mean

FLOOR = 1e-6  # added to a channel's variance


def s3d_kd(
    assistant: Tensor,  # (B, C) logits of the restyled images
    z: Tensor,  # (B, C) the student's logits
    temperature: float = 4.0,
) -> Tensor:
    """T^2 mean_b KL(softmax(assistant_b / T) || softmax(z_b / T)) over the global batch. The gradient goes to z; the
    assistant is a constant."""
    return temperature**2 * ape_consistency(assistant / temperature, z / temperature)


def s3d_self(z: Tensor) -> Tensor:
    """mean_b max(p_b) * CE(z_b, argmax z_b), p = softmax(z), over the global batch; weights and labels are constants.
    z is (B, C) the student's logits."""
    weights, labels = torch.softmax(z.detach(), 1).max(1)
    return global_mean(weights * F.cross_entropy(z, labels, reduction="none"))


def s3d_statistics(
    x: Tensor,  # (B, ch, H, W)
) -> tuple[Tensor, Tensor]:
    """((B, ch), (B, ch)) the mean and the standard deviation of each map, sqrt(unbiased variance + 1e-6); of a map of
    one pixel the variance is 0. Constants."""
    x = widened(x.detach()).flatten(2)
    variance, mean = torch.var_mean(x, dim=2, correction=1 if x.shape[2] > 1 else 0)
    return mean, (variance + FLOOR).sqrt()


def s3d_style(
    x: Tensor,  # (B, ch, H, W)
    mean: Tensor,  # (B, ch) of another image's map at the same stage
    std: Tensor,  # (B, ch)
    share: Tensor,  # (B,) l, how far the statistics go there
) -> Tensor:
    """(l std + (1 - l) own std) * (x - own mean) / own std + l mean + (1 - l) own mean, as x is shaped. The gradient
    goes to x; all statistics are constants."""
    own_mean, own_std = s3d_statistics(x)
    share = share.detach().to(own_mean.dtype)[:, None]
    scale = torch.lerp(own_std, std.detach().to(own_std.dtype), share) / own_std
    moved = torch.lerp(own_mean, mean.detach().to(own_mean.dtype), share)
    return (scale[..., None, None] * (x - own_mean[..., None, None]) + moved[..., None, None]).to(x.dtype)


def s3d_labels(
    z: Tensor,  # (B, C) logits of unlabelled images
    margin: float | Tensor,
    confidence: float,
) -> Tensor:
    """(B,) int64 argmax z_b where the largest logit leads the second by more than `margin`, or max softmax(z_b) is more
    than `confidence`; else -1. A constant."""
    z = z.detach()
    q, labels = torch.softmax(z, 1).max(1)
    return labels.masked_fill((s3d_margins(z) <= margin) & (q <= confidence), -1)


def s3d_margins(z: Tensor) -> Tensor:
    """(B,) how far the largest logit leads the second; with one class, inf. Their mean over the unlabelled images is
    `s3d_labels`'s margin."""
    if z.shape[1] == 1:
        return torch.full_like(z[:, 0], torch.inf)
    first, second = z.topk(2, dim=1).values.unbind(1)
    return first - second


def s3d_weight(
    x: float | Tensor,  # how far stage 2 has come; or a scalar on the device
    rate: float = 8.0,
) -> float | Tensor:
    """lambda(x) = 2 / (1 + exp(-rate x)) - 1, and 1 from x = 1 on."""
    if isinstance(x, Tensor):
        return torch.where(x >= 1, 1, torch.tanh(rate * x / 2))
    return 1.0 if x >= 1 else math.tanh(rate * x / 2)
