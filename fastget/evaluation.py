"""Accuracy on a labelled or unlabelled domain. Target labels are for reporting only: nothing is selected by them.

Shapes: N images, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastget.lists import UNLABELLED
from fastget.loaders import Loader
from fastget.network import Network


@dataclass(frozen=True)
class Evaluation:
    """Predictions for every image of a list, and what they are worth where labels are known."""

    predictions: NDArray[np.int64]  # (N,)
    confidence: NDArray[np.float32]  # (N,)
    accuracy: float | None  # None without labels
    mean_class_accuracy: float | None  # the mean over the classes that the list holds
    per_class: list[float | None]  # (C,) None for a class without images

    def metrics(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy, "mean_class_accuracy": self.mean_class_accuracy}


@torch.no_grad()
def infer(network: Network, loader: Loader) -> tuple[Tensor, Tensor, Tensor]:
    """Features (N, D), logits (N, C) and labels (N,) of every image, in the list's order, in evaluation mode."""
    training = network.training
    network.eval()
    features, logits, labels = [], [], []
    for batch in loader.batches():
        f, z = network(batch.images)
        features.append(f.float())
        logits.append(z.float())
        labels.append(batch.labels)
    network.train(training)
    return torch.cat(features), torch.cat(logits), torch.cat(labels)


def evaluate(network: Network, loader: Loader) -> Evaluation:
    """Predict every image of the loader's list, and score the predictions."""
    _, logits, labels = infer(network, loader)
    confidence, predictions = logits.softmax(1).max(1)
    return score(predictions, confidence, labels, logits.shape[1])


def score(predictions: Tensor, confidence: Tensor, labels: Tensor, num_classes: int) -> Evaluation:
    """The metrics, each with one meaning: `accuracy` over images, `mean_class_accuracy` over classes."""
    p, c = predictions.cpu().numpy(), confidence.cpu().numpy()
    if bool((labels == UNLABELLED).any()):
        return Evaluation(p, c, None, None, [None] * num_classes)
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
    )
