"""A fixed draw of a list's images, looked at more closely than the rest: their features, and what is said of them.

It is for reports. Nothing that is trained or selected depends on it, and drawing it uses no random number of the run.

Shapes: N images of the list, M of the draw, D feature width, C classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastget.common.ranks import Ranks
from fastget.evaluation.infer import Inferred
from fastget.loading.sampling import fixed_draw

LARGEST = torch.finfo(torch.float16).max
SURE = 0.9  # a label counts as covered from this confidence on


class Sampled(NamedTuple):
    """What the network says of the draw, in the order of the list, on the CPU."""

    features: Tensor  # (M, D)
    logits: Tensor  # (M, C)
    labels: Tensor  # (M,) -1 where it is not known
    place: Tensor  # (M,) int64, into the list

    def tensors(self) -> dict[str, Tensor]:
        """As a file stores them: small, and without the logits."""
        confidence, predictions = self.logits.softmax(1).max(1)
        return {
            "features": self.features.clamp(-LARGEST, LARGEST).half(),
            "predictions": predictions,
            "confidence": confidence,
            "labels": self.labels,
            "place": self.place,
        }


class Sample:
    """Collects the rows of the draw as batches go through the network; several ranks have a part of it each."""

    def __init__(self, images: int, size: int, ranks: Ranks) -> None:
        self.chosen: NDArray[np.bool_] = np.zeros(images, dtype=np.bool_)
        self.chosen[fixed_draw(images, size)] = True
        self._ranks = ranks
        self._parts: list[tuple[Tensor, ...]] = []

    def __len__(self) -> int:
        return int(self.chosen.sum())

    def add(self, features: Tensor, logits: Tensor, labels: Tensor, place: NDArray[np.int64]) -> None:
        """A batch; those of it that were not drawn are passed over. They stay on the device until they are read."""
        mine = np.flatnonzero(self.chosen[place])
        if not len(mine):
            return
        rows = torch.from_numpy(mine).to(logits.device, non_blocking=True)
        kept = [part[rows] for part in (features.float(), logits.float(), labels)]
        self._parts.append((*kept, torch.from_numpy(place[mine])))

    def add_all(self, share: Inferred) -> None:
        """A whole pass that kept its features."""
        start = 0
        for chunk in share.features:
            end = start + len(chunk)
            self.add(chunk, share.logits[start:end], share.labels[start:end], share.place[start:end])
            start = end

    def read(self) -> Sampled | None:
        """What was added since the last call, by all ranks, which all call it; None: nothing was."""
        parts, self._parts = [tuple(column.cpu() for column in part) for part in self._parts], []
        every = [part for theirs in self._ranks.gather(parts) for part in theirs]
        if not every:
            return None
        columns = [torch.cat(column) for column in zip(*every, strict=True)]
        order = columns[3].argsort()
        return Sampled(*(column[order] for column in columns))


def quality(labels: Tensor, confidence: Tensor, truth: Tensor, num_classes: int) -> dict[str, float | int | None]:
    """What given labels (M,) are worth: how many are sure, how many classes they name, and, where the truth is known,
    how many of all, and of the sure ones, are right."""
    sure = confidence >= SURE
    known = bool((truth >= 0).all())
    right = (labels == truth).double()
    return {
        "coverage": float(sure.double().mean()),
        "classes": int((torch.bincount(labels[labels >= 0], minlength=num_classes) > 0).sum()),
        "accuracy": float(right.mean()) if known else None,
        "accuracy_sure": float(right[sure].mean()) if known and bool(sure.any()) else None,
    }
