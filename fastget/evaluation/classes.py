"""What a target is made of: the share of every class in it, how sure that is, and the classes that are probably absent.

The estimate is the histogram of the final model's predictions, for every method: of what was compared on real features
it was nearest the truth (docs/classes.md). No label is needed; where there are labels, they tell how far off it is.

Shapes: N images, C classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastget.evaluation.score import Evaluation

ESTIMATE = "histogram of the final model's predictions"
LAST = 5  # evaluations that the interval is over
ABSENT = 0.1  # of the fair share 1 / C: a class that stays below it is probably absent
Z = 1.959964  # 95 % of a normal distribution

Shares = NDArray[np.float64]  # (C,)


class Tally(NamedTuple):
    """What an evaluation says of the classes, as plain values: a checkpoint holds the last few."""

    step: int
    predicted: list[int] | list[float]  # (C,) images
    sure: list[float]  # (C,) the sum of these images' confidences
    mass: list[float]  # (C,) the sum of the class's probability over all images


def tally(step: int, result: Evaluation) -> Tally:
    """Of the model at this step."""
    size = len(result.per_class)
    predicted = np.bincount(result.predictions, minlength=size)
    sure = np.bincount(result.predictions, weights=result.confidence, minlength=size)
    return Tally(step, predicted.tolist(), sure.tolist(), result.mass.tolist())


def with_latest(before: Sequence[Tally], new: Tally) -> list[Tally]:
    """The last few; an evaluation that is made again, by a run that goes on at its last step, counts once."""
    return [*(one for one in before if one.step < new.step), new][-LAST:]


@dataclass(frozen=True)
class Classes:
    """The estimate."""

    names: tuple[str, ...]
    predicted: NDArray[np.int64]  # (C,) images
    absent: NDArray[np.bool_] | None  # (C,) probably; None: it cannot be known
    low: Shares | None = None  # None: of one look at the images, without the probabilities of all classes
    high: Shares | None = None
    truth: Shares | None = None  # None: no labels
    evaluations: int = 1  # that the interval is over
    untold: str = ""  # why nothing of this is told, in words; empty: it is

    @property
    def images(self) -> int:
        return int(self.predicted.sum())

    @property
    def share(self) -> Shares:
        return np.asarray(self.predicted / max(1, self.images), dtype=np.float64)

    @property
    def total_variation(self) -> float | None:
        """Half the sum of the differences to the true shares: the share of the images to move for them to agree."""
        return None if self.truth is None else float(np.abs(self.share - self.truth).sum() / 2)

    def largest(self) -> list[int]:
        """Classes by their share, the largest first; as they stand where it is the same."""
        return [int(i) for i in np.argsort(-self.predicted, kind="stable")]

    def doubted(self, untold: str, collapsed: bool) -> Classes:
        """As far as it can be told: nothing of it, or, by a model that collapsed, not which classes are absent."""
        return dataclasses.replace(self, untold=untold, absent=None if untold or collapsed else self.absent)

    def summary(self) -> dict[str, Any]:
        """As summary.json has it."""
        return {
            "estimate": ESTIMATE,
            "evaluations": self.evaluations,
            "probably_absent": None if self.absent is None else int(self.absent.sum()),
            "total_variation": self.total_variation,
            "untold": self.untold,
        }


def count(names: tuple[str, ...], predicted: NDArray[np.int64]) -> Classes:
    """From predictions alone, of images that any run may have been for: which classes are absent is not in them."""
    return Classes(names, predicted, None)


def estimate(
    names: tuple[str, ...],
    tallies: Sequence[Tally],  # of the last evaluations, the final model's last
    labels: NDArray[np.int64] | None = None,  # (N,) of the images that were evaluated
    draw: Tally | None = None,  # the final model's on the images that the other evaluations looked at; None: on all
) -> Classes:
    """The final model's histogram; the interval holds what each of the last evaluations leaves open."""
    final = tallies[-1]
    tallies = tallies if draw is None else [*(of_all(one, draw, final) for one in tallies[:-1]), final]
    predicted = [np.array(one.predicted) for one in tallies]
    lows, highs = zip(*map(_bounds, tallies), strict=True)
    return Classes(
        names,
        np.array(final.predicted, dtype=np.int64),
        _absent(predicted),
        np.min(lows, axis=0),
        np.max(highs, axis=0),
        None if labels is None else np.bincount(labels, minlength=len(names)) / len(labels),
        len(tallies),
    )


def of_all(one: Tally, draw: Tally, final: Tally) -> Tally:
    """What an evaluation of a few images would have said of all, as far as is known: what the final model says of all,
    and how far this evaluation was from it on the few. Their draw is then no part of what is left open, only how they
    differ. An evaluation of more images than the draw has (of a run that began with all) stays as it is."""
    few, images = sum(draw.predicted), sum(final.predicted)
    if sum(one.predicted) > few:
        return one
    parts = zip(one[1:], draw[1:], final[1:], strict=True)
    moved = [
        np.maximum(np.array(now) + (np.array(then) / sum(one.predicted) - np.array(same) / few) * images, 0).tolist()
        for then, same, now in parts
    ]
    return Tally(one.step, *moved)


def _absent(predicted: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Fewer than a tenth of the fair share of the images at every evaluation: of few images, none."""
    most = np.max([one / max(1, int(one.sum())) for one in predicted], axis=0)
    return np.asarray(most < ABSENT / len(most))


def _bounds(one: Tally) -> tuple[Shares, Shares]:
    """Wilson's interval of the predicted share, for other images of the same kind; less the images that by their own
    confidences are of other classes, more those of other predictions that by their probabilities are of this one."""
    predicted, sure, mass = (np.array(part, dtype=np.float64) for part in one[1:])
    images = predicted.sum()
    low, high = wilson(predicted, images)
    wrong, missed = np.maximum(predicted - sure, 0), np.maximum(mass - sure, 0)
    return np.maximum(low - wrong / images, 0), np.minimum(high + missed / images, 1)


def wilson(counts: Shares, images: float) -> tuple[Shares, Shares]:
    """Wilson's score interval at 95 %: also of no image, or of all, it is an interval."""
    share = counts / images
    middle = share + Z**2 / (2 * images)
    half = Z * np.sqrt(share * (1 - share) / images + Z**2 / (4 * images**2))
    scale = 1 + Z**2 / images
    # rounding must not exclude the share itself
    return np.clip((middle - half) / scale, 0, share), np.clip((middle + half) / scale, share, 1)
