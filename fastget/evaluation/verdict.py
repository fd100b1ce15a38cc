"""The verdict on a run: what is known to be wrong with it. Pure functions of numbers; most of it needs no label.

Labels of the target report here, as everywhere: they select nothing.

Shapes: C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastget.common.agreement import Agreement

COVERED = 0.5  # of all classes, or of those at the end of the warm-up: fewer in effect are a collapse
NEAR = 0.02  # of chance
FALL = 0.01  # of the accuracy, that is not worth a word
KNOWN = 0.5  # the trust from which on the target's classes are told
LOW, FAIR, COLLAPSE, FELL, CHANCE = "low_agreement", "fair_agreement", "collapse", "below_warm_up", "at_chance"
LOOK = (
    "check a sample by eye (contact sheet: fastget data show; with predictions: fastget report) before you use the "
    "predictions"
)


class Finding(NamedTuple):
    """One thing that the user is to know."""

    name: str
    text: str  # for people
    numbers: dict[str, float]


def in_effect(counts: Sequence[float]) -> float:
    """How many classes a histogram (C,) covers in effect: exp of its entropy, C for equal counts."""
    total = sum(counts)
    return math.exp(-sum(n / total * math.log(n / total) for n in counts if n > 0)) if total else 0.0


def of_agreement(told: Agreement | None) -> list[Finding]:
    """Where it is too low for the prior to be believed in full."""
    if told is None or told.trust >= 1:
        return []
    words = f"The two labellers agree on {100 * told.share:.0f} % of the target (kappa {told.kappa:.2f})"
    if told.trust <= 0:
        return [Finding(LOW, f"{words}: too few to tell which classes it has. {told.effect}; {LOOK}.", told.numbers())]
    rest = "shares of its classes are a guess" if told.trust >= KNOWN else "which classes it has is not told"
    return [Finding(FAIR, f"{words}, which is not much. {told.effect}; {rest}.", told.numbers())]


def of_coverage(
    predicted: Sequence[float],  # (C,) images that the final model takes for each class
    before: float | None,  # classes in effect at the end of the warm-up; None: not measured
    partial: bool,  # the target is declared to lack classes
) -> list[Finding]:
    """Predictions that are drawn together on a few classes."""
    covered, most = in_effect(predicted), min(len(predicted), sum(predicted))  # few images cover no more classes
    narrow = not partial and covered < COVERED * most
    narrowed = before is not None and covered < COVERED * before
    if not (narrow or narrowed):
        return []
    words = f"The final predictions cover {covered:.1f} of {len(predicted):,} classes in effect"
    if before is not None:
        words += f" ({before:.1f} at the end of the warm-up)"
    if narrow:
        words += (
            ". If the target is known to lack classes, say so: data.setting=pda, or for a target without "
            "labels get.partial=yes (of the method get). If not, they have collapsed"
        )
    else:
        words += ", drawn together by adaptation"
    numbers = {"classes_in_effect": covered, "classes": float(len(predicted))}
    return [
        Finding(
            COLLAPSE,
            f"{words}: check a sample by eye before you use them.",
            numbers | ({} if before is None else {"at_end_of_warm_up": before}),
        )
    ]


def of_accuracy(
    accuracy: float | None,  # None: no labels
    mean_class_accuracy: float | None,
    before: float | None,  # the accuracy at the end of the warm-up
    present: int,  # classes that the target has images of
    images: int,  # that were scored
) -> list[Finding]:
    """With labels: less accurate than before adaptation, by more than a point and than chance may make of so many
    images; or no better than one answer for every image, whose mean class accuracy is 1 / present whichever class it
    is. (Its accuracy is that class's share, which says less.)"""
    found = []
    if accuracy is not None and before is not None and before - accuracy > max(FALL, _error(accuracy, before, images)):
        text = (
            f"By the labels adaptation did harm: accuracy {100 * accuracy:.1f} %, and {100 * before:.1f} % at the end "
            "of the warm-up."
        )
        found.append(Finding(FELL, text, {"accuracy": accuracy, "at_end_of_warm_up": before}))
    if mean_class_accuracy is not None and present > 1 and mean_class_accuracy <= 1 / present + NEAR:
        text = (
            f"By the labels the result is at chance: mean class accuracy {100 * mean_class_accuracy:.1f} %, where one "
            f"answer for all images gives {100 / present:.1f} %."
        )
        found.append(Finding(CHANCE, text, {"mean_class_accuracy": mean_class_accuracy, "chance": 1 / present}))
    return found


def _error(one: float, other: float, images: int) -> float:
    """The standard error of the difference of two accuracies: of one list, so that it is less in truth."""
    return math.sqrt((one * (1 - one) + other * (1 - other)) / max(1, images))


def untold(told: Agreement | None) -> str:
    """Why it is not told which classes the target has, in words; empty: it is."""
    return "the two labellers agree too little" if told is not None and told.trust < KNOWN else ""


def collapsed(found: Sequence[Finding]) -> bool:
    """A class that is not predicted may be there then."""
    return any(one.name == COLLAPSE for one in found)


def as_dicts(found: Sequence[Finding]) -> list[dict[str, Any]]:
    """As summary.json has them."""
    return [one._asdict() for one in found]
