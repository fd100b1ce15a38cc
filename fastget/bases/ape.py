"""APE's formulas (Kim and Kim, ECCV 2020): attract, perturb and explore, for semi-supervised adaptation.

Shapes: B unlabelled target images, C classes, D feature width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastget.bases.base import widened
from fastget.common.ranks import gathered, global_mean
from fastget.methods.minent import entropies
from fastget.methods.pl import weighted_cross_entropy

WIDTHS = (1.0, 2.0, 5.0, 10.0)  # sigma of the kernels


def ape_mmd(
    x: Tensor,  # (n, D) features of the labelled images, of length 1 in APE
    y: Tensor,  # (m, D) of the unlabelled ones
) -> Tensor:
    """mean k(X, X) + mean k(Y, Y) - 2 mean k(X, Y), diagonals kept, k(a, b) = sum over sigma in 1, 2, 5, 10 of
    exp(-|a - b|^2 / (2 sigma^2)), over the global batch; 0 where a side has no rows. The gradient goes to both."""
    x, y = gathered(x), gathered(y)
    if not len(x) or not len(y):
        return 0 * (x.sum() + y.sum())
    return _kernel(x, x).mean() + _kernel(y, y).mean() - 2 * _kernel(x, y).mean()


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """(n, m). Distances are of differences: of inner products they would lose their digits."""
    squared = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()
    return torch.stack([torch.exp(-squared / (2 * sigma**2)) for sigma in WIDTHS]).sum(0)


def ape_explore(
    z: Tensor,  # (B, C) target logits
    threshold: float,
) -> Tensor:
    """sum over the rows with H(p_b) < threshold, in nats, of CE(z_b, argmax z_b), over max(1, their number), of the
    global batch. The gradient goes to z; the choice of rows and the labels are constants."""
    sure = entropies(z.detach()) < threshold
    return weighted_cross_entropy(z, z.detach().argmax(1), sure.to(z.dtype))


def ape_perturbation(
    gradient: Tensor,  # (B, ...) of the predictions' entropies by the images
    epsilon: float | Tensor,
) -> Tensor:
    """(B, ...) r_b = epsilon * g_b / |g_b|, the length over the whole image; 0 where g_b is 0. A constant."""
    g = widened(gradient.detach()).flatten(1)
    largest = g.abs().amax(1, keepdim=True)  # taken out first: squares of a small gradient underflow
    g = g / torch.where(largest > 0, largest, 1)
    lengths = torch.linalg.vector_norm(g, dim=1, keepdim=True)
    return (epsilon * g / torch.where(largest > 0, lengths, 1)).view_as(gradient).to(gradient.dtype)


def ape_consistency(
    z_clean: Tensor,  # (B, C) logits of the images
    z: Tensor,  # (B, C) of the same images, perturbed
) -> Tensor:
    """mean_b KL(softmax(z_clean_b) || softmax(z_b)) over the global batch. The gradient goes to z; z_clean is a
    constant.

    Differs from the authors' code, which takes softmaxes of features there, of two layers, and a mean over their width.
    """
    p, log_q = torch.softmax(z_clean.detach(), 1), torch.log_softmax(z, 1)
    log_p = torch.log_softmax(z_clean.detach(), 1)
    return global_mean((p * torch.where(p > 0, log_p - log_q, 0)).sum(1))
