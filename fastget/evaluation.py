"""Predictions for a whole list, and what they are worth.

Accuracy needs the target's labels: it is for reporting, never for selecting. The criteria of `selection` need none.
Under several ranks each infers its share, and no image is counted twice.

Shapes: N images, n of them on this rank, D feature width, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastget.lists import UNLABELLED
from fastget.loaders import Loader
from fastget.network import Network
from fastget.ranks import Ranks
from fastget.selection import SAMPLE, criteria, entropy


@dataclass(frozen=True)
class Evaluation:
    """Predictions for every image of a list, in its order, and the metrics, each with one meaning."""

    predictions: NDArray[np.int64]  # (N,)
    confidence: NDArray[np.float32]  # (N,)
    accuracy: float | None  # over images; None without labels
    mean_class_accuracy: float | None  # the mean over the classes that the list holds
    per_class: list[float | None]  # (C,) None for a class without images
    label_free: dict[str, float | None] = field(default_factory=dict)

    def metrics(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy, "mean_class_accuracy": self.mean_class_accuracy}


@torch.no_grad()
def infer(network: Network, loader: Loader, *, keep_features: bool = False) -> tuple[list[Tensor], Tensor, Tensor]:
    """Features (chunks of (n, D), if kept), logits (n, C) and labels (n,) of this rank's share, in evaluation mode."""
    training = network.training
    network.eval()
    features, logits, labels = [], [], []
    for batch in loader.batches():
        f, z = network(batch.images)
        if keep_features:
            features.append(f.float())
        logits.append(z.float())
        labels.append(batch.labels)
    network.train(training)
    width = network.classifier.out_features
    if not logits:  # fewer images than ranks
        device = network.classifier.weight.device
        return features, torch.empty(0, width, device=device), torch.empty(0, dtype=torch.int64, device=device)
    return features, torch.cat(logits), torch.cat(labels)


def evaluate(network: Network, loader: Loader, ranks: Ranks | None = None) -> Evaluation:
    """Predict every image of the loader's list, and score the predictions."""
    _, logits, labels = infer(network, loader)
    return assess(logits, labels, ranks or Ranks())


def assess(logits: Tensor, labels: Tensor, ranks: Ranks) -> Evaluation:
    """The evaluation from every rank's logits (n, C) and labels (n,)."""
    P = logits.softmax(1)
    confidence, predictions = P.max(1)
    every = max(1, -(-len(P) * ranks.world // SAMPLE))
    mine = [predictions, confidence, labels, entropy(P).sum(), P.sum(0), P[::every]]
    shares = list(zip(*ranks.gather([part.cpu() for part in mine]), strict=True))
    p, c, y = (torch.cat(share) for share in shares[:3])
    label_free = criteria(float(sum(shares[3])) / len(p), sum(shares[4]) / len(p), torch.cat(shares[5]))
    return score(p, c, y, logits.shape[1], label_free)


def score(
    predictions: Tensor,  # (N,)
    confidence: Tensor,  # (N,)
    labels: Tensor,  # (N,)
    num_classes: int,
    label_free: dict[str, float | None] | None = None,
) -> Evaluation:
    """Accuracy over images, and over classes, where the labels are known."""
    p, c, free = predictions.cpu().numpy(), confidence.cpu().numpy(), label_free or {}
    if bool((labels == UNLABELLED).any()):
        return Evaluation(p, c, None, None, [None] * num_classes, free)
    right = torch.bincount(labels[predictions == labels], minlength=num_classes).double()
    total = torch.bincount(labels, minlength=num_classes).double()
    held = total > 0
    per_class = (right / total.clamp_min(1)).tolist()
    return Evaluation(
        predictions=p,
        confidence=c,
        accuracy=float(right.sum() / total.sum()),
        mean_class_accuracy=float((right[held] / total[held]).mean()),
        per_class=[value if there else None for value, there in zip(per_class, held.tolist(), strict=True)],
        label_free=free,
    )
