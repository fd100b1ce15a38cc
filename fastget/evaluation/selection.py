"""What can be said of a model without target labels, so that a checkpoint can be chosen honestly.

`validation` alone takes labels: those of the images that SSDA sets aside for it, which are not trained on.

Shapes: N images, C classes, M <= N images of a sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastget.common.choices import Criterion

SAMPLE = 2048  # images of the neighbourhood measure, which is quadratic in them
# name -> whether more of it is better
CRITERIA: dict[Criterion, bool] = {
    "entropy": False,
    "mutual_information": True,
    "neighbourhood_density": True,
    "validation": True,
}


def entropy(probabilities: Tensor) -> Tensor:
    """-sum p log p over the last axis."""
    return -torch.xlogy(probabilities, probabilities).sum(-1)


def neighbourhood_density(
    probabilities: Tensor,  # (M, C)
    temperature: float = 0.05,
) -> float:
    """Soft neighbourhood density (Saito et al., ICCV 2021): the mean entropy of an image's similarities to the others,
    softmax over cosine / temperature. More is better: images lie in dense groups."""
    unit = torch.nn.functional.normalize(probabilities, dim=1)
    similarity = unit @ unit.T / temperature
    similarity.fill_diagonal_(-torch.inf)
    log = torch.log_softmax(similarity, 1)
    return float(-(log.exp() * log.nan_to_num(neginf=0)).sum(1).mean())


def criteria(
    mean_entropy: float,
    mean_probabilities: Tensor,  # (C,)
    sample: Tensor,  # (M, C)
) -> dict[str, float | None]:
    """The three measures without labels, by the names of CRITERIA."""
    mutual = float(entropy(mean_probabilities)) - mean_entropy
    density = neighbourhood_density(sample) if len(sample) > 1 else None
    return {"entropy": mean_entropy, "mutual_information": mutual, "neighbourhood_density": density}


def better(criterion: Criterion, new: float | None, old: float | None) -> bool:
    """Whether `new` is to be kept in place of `old`."""
    if new is None:
        return False
    return old is None or (new > old if CRITERIA[criterion] else new < old)
