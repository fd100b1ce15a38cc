"""What predictions for a whole list are worth.

Accuracy needs the target's labels: it is for reporting, never for selecting. The criteria of `selection` need none,
but for SSDA's validation list, whose labels are given for that.

Shapes: N images, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastget.common.choices import Criterion
from fastget.common.errors import RunFailed
from fastget.common.ranks import Ranks
from fastget.data.lists import UNLABELLED
from fastget.evaluation.infer import Between, Inferred, Look, infer, nothing
from fastget.evaluation.selection import SAMPLE, criteria, entropy
from fastget.loading.loader import Loader
from fastget.networks.network import Network


@dataclass(frozen=True)
class Evaluation:
    """Predictions for every image of a list, in its order, and the metrics, each with one meaning."""

    index: NDArray[np.int64]  # (N,) into the list: all of it, but for files that could not be read any more
    predictions: NDArray[np.int64]  # (N,)
    confidence: NDArray[np.float32]  # (N,)
    accuracy: float | None  # over images; None without labels
    mean_class_accuracy: float | None  # the mean over the classes that the list holds
    per_class: list[float | None]  # (C,) None for a class without images
    mass: NDArray[np.float32]  # (C,) the sum of each class's probability over the images
    label_free: dict[str, float | None] = field(default_factory=dict)
    of: int | None = None  # images of the list, where these are a draw of it
    on_draw: Evaluation | None = None  # the same predictions on that draw alone, where all images were looked at
    validation: Evaluation | None = None  # the same network on SSDA's validation list, where there is one

    def metrics(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy, "mean_class_accuracy": self.mean_class_accuracy}

    def logged(self) -> dict[str, Any]:
        """All figures, as a line of metrics.jsonl has them."""
        validation = self.validation.metrics() if self.validation is not None else {}
        named = {f"validation_{name}": value for name, value in validation.items()}
        return {**self.metrics(), **self.label_free, **named, **self._looked_at()}

    def _looked_at(self) -> dict[str, Any]:
        """How many images these are, in a run that looks at a draw of them before its last step."""
        if self.of is not None:
            return {"images": len(self.index), "of": self.of}
        if self.on_draw is None:
            return {}
        draw = {"images": len(self.on_draw.index), **self.on_draw.metrics(), **self.on_draw.label_free}
        return {"images": len(self.index), "on_draw": draw}

    def criterion(self, name: Criterion) -> float | None:
        """What a checkpoint is chosen by: of the same images at every evaluation."""
        if name == "validation":
            return None if self.validation is None else self.validation.mean_class_accuracy
        return (self.on_draw or self).label_free.get(name)


def evaluate(
    network: Network,
    loader: Loader,
    ranks: Ranks | None = None,
    between: Between = nothing,
    look: Look | None = None,
    dtype: torch.dtype = torch.float32,  # that the network runs in
) -> Evaluation:
    """Predict every image of the loader's list, and score the predictions. `look` is shown every batch on the way."""
    return assess(infer(network, loader, between=between, look=look, dtype=dtype), ranks or Ranks())


def assess(share: Inferred, ranks: Ranks) -> Evaluation:
    """The evaluation from every rank's share."""
    P = share.logits.softmax(1)
    confidence, predictions = P.max(1)
    every = max(1, -(-len(P) * ranks.world // SAMPLE))
    place = torch.from_numpy(share.place)
    mine = [place, predictions, confidence, share.labels, entropy(P).sum(), P.sum(0), P[::every]]
    shares = list(zip(*ranks.gather([part.cpu() for part in mine]), strict=True))
    i, p, c, y = (torch.cat(part) for part in shares[:4])
    if not len(p):
        raise RunFailed("none of the images to evaluate can be read any more: run `fastget data check`")
    label_free = criteria(float(sum(shares[4])) / len(p), sum(shares[5]) / len(p), torch.cat(shares[6]))
    return score(i, p, c, y, P.shape[1], label_free, sum(shares[5]))


def score(
    index: Tensor,  # (N,)
    predictions: Tensor,  # (N,)
    confidence: Tensor,  # (N,)
    labels: Tensor,  # (N,)
    num_classes: int,
    label_free: dict[str, float | None] | None = None,
    mass: Tensor | None = None,  # (C,) summed probabilities; without them every prediction is taken as certain
) -> Evaluation:
    """Accuracy over images, and over classes, where the labels are known."""
    i, p, c, free = index.numpy(), predictions.numpy(), confidence.numpy(), label_free or {}
    m = (torch.bincount(predictions, minlength=num_classes).float() if mass is None else mass).numpy()
    if bool((labels == UNLABELLED).any()):
        return Evaluation(i, p, c, None, None, [None] * num_classes, m, free)
    right = torch.bincount(labels[predictions == labels], minlength=num_classes).double()
    total = torch.bincount(labels, minlength=num_classes).double()
    present = total > 0
    per_class = (right / total.clamp_min(1)).tolist()
    return Evaluation(
        index=i,
        predictions=p,
        confidence=c,
        accuracy=float(right.sum() / total.sum()),
        mean_class_accuracy=float((right[present] / total[present]).mean()),
        per_class=[value if there else None for value, there in zip(per_class, present.tolist(), strict=True)],
        mass=m,
        label_free=free,
    )
