"""What is found wrong with a run, on invented numbers: each finding where it is due, and nothing where all is well."""

import math

import pytest

from fastget.common.agreement import Agreement
from fastget.evaluation.verdict import (
    CHANCE,
    COLLAPSE,
    FAIR,
    FELL,
    LOW,
    Finding,
    collapsed,
    in_effect,
    of_accuracy,
    of_agreement,
    of_coverage,
    untold,
)


def names(found: list[Finding]) -> list[str]:
    return [one.name for one in found]


def agreed(kappa: float, trust: float) -> Agreement:
    return Agreement(0.18, kappa, trust, "The prior is left uniform")


def test_classes_in_effect() -> None:
    assert in_effect([5, 5, 5, 5]) == pytest.approx(4)
    assert in_effect([20, 0, 0, 0]) == 1
    assert in_effect([3, 1]) == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))
    assert in_effect([0, 0]) == 0


def test_agreement() -> None:
    (low,) = of_agreement(agreed(0.09, 0))
    assert low.name == LOW
    assert low.text.startswith(
        "The two labellers agree on 18 % of the target (kappa 0.09): too few to tell which classes it has. "
        "The prior is left uniform; check a sample by eye"
    )
    assert low.numbers == {"agreement": 0.18, "kappa": 0.09, "trust": 0}
    (fair,) = of_agreement(agreed(0.45, 0.25))
    assert fair.name == FAIR
    assert "is not told" in fair.text
    (better,) = of_agreement(agreed(0.55, 0.75))
    assert better.name == FAIR
    assert "are a guess" in better.text
    assert of_agreement(agreed(0.6, 1)) == of_agreement(None) == []


def test_which_classes_there_are_is_told_from_half_the_trust_on() -> None:
    assert untold(None) == untold(agreed(0.5, 0.5)) == ""
    assert "agree too little" in untold(agreed(0.49, 0.49))


@pytest.mark.parametrize(
    ("predicted", "before", "partial", "said"),
    [
        ([10, 10, 10, 10], 4.0, False, False),
        ([10, 10, 0, 0], 3.9, False, False),  # half of them: not fewer
        ([30, 10, 0, 0], None, False, True),  # 1.8 of 4
        ([30, 10, 0, 0], None, True, False),  # which was to be expected
        ([30, 10, 0, 0], 3.0, True, False),
        ([30, 10, 0, 0], 3.9, True, True),  # but not from 3.9 to 1.8
        ([30, 10, 0, 0, 0, 0], 1.8, False, True),  # as before, and too few
        ([1, 1, 1] + 20 * [0], None, False, False),  # three images cover no more
        ([3, 0, 0] + 20 * [0], None, False, True),
    ],
)
def test_collapse(predicted: list[int], before: float | None, partial: bool, said: bool) -> None:
    found = of_coverage(predicted, before, partial)
    assert names(found) == ([COLLAPSE] if said else [])
    assert collapsed(found) == said
    for one in found:
        assert f"cover {in_effect(predicted):.1f} of {len(predicted)} classes in effect" in one.text
        assert ("at the end of the warm-up" in one.text) == (before is not None)
        assert ("get.partial=yes" in one.text) != partial  # it is declared already
        assert one.numbers["classes_in_effect"] == pytest.approx(in_effect(predicted))
        assert one.numbers.get("at_end_of_warm_up") == before


def test_below_the_warm_up() -> None:
    (fell,) = of_accuracy(0.113, 0.4, 0.348, 7, 500)
    assert (fell.name, fell.numbers) == (FELL, {"accuracy": 0.113, "at_end_of_warm_up": 0.348})
    assert "accuracy 11.3 %, and 34.8 % at the end of the warm-up" in fell.text
    assert of_accuracy(0.348, 0.4, 0.348, 7, 500) == []
    assert of_accuracy(0.348, 0.4, None, 7, 500) == []


@pytest.mark.parametrize(
    ("accuracy", "before", "images", "said"),
    [
        (0.975, 0.981, 157, False),  # one image of 157
        (0.965, 0.98, 157, False),  # two or three, and chance may make so much of it
        (0.92, 0.98, 157, True),
        (0.60, 0.608, 100_000, False),  # less than a point
        (0.60, 0.612, 100_000, True),
        (0.0, 0.25, 48, True),
    ],
)
def test_a_fall_that_chance_may_make_is_not_told(accuracy: float, before: float, images: int, said: bool) -> None:
    assert names(of_accuracy(accuracy, 0.9, before, 31, images)) == ([FELL] if said else [])


def test_at_chance() -> None:
    (chance,) = of_accuracy(0.5, 1 / 7 + 0.015, None, 7, 99)
    assert (chance.name, chance.numbers["chance"]) == (CHANCE, 1 / 7)
    assert "mean class accuracy 15.8 %, where one answer for all images gives 14.3 %" in chance.text
    assert of_accuracy(1 / 7, 1 / 7 + 0.025, None, 7, 99) == []  # the largest class may have a share of 1/7 and more
    assert of_accuracy(1.0, 1.0, None, 1, 99) == []  # of one class every answer is right
    assert names(of_accuracy(0.1, 0.1, 0.2, 7, 99)) == [FELL, CHANCE]


def test_without_labels_nothing_is_said_of_accuracy() -> None:
    assert of_accuracy(None, None, None, 0, 9) == []
