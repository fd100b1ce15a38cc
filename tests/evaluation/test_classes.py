"""What a target is made of: on a known distribution, with and without doubt, of one class, and of few images."""

import dataclasses

import numpy as np
import pytest
import torch

from fastget.evaluation.classes import LAST, Classes, Tally, count, estimate, of_all, tally, wilson, with_latest
from fastget.evaluation.score import score

NAMES = ("ant", "bee", "cat", "dog")


def certain(step: int, *predicted: int) -> Tally:
    """An evaluation of a network without doubts."""
    sums = [float(number) for number in predicted]
    return Tally(step, list(predicted), sums, sums)


def test_a_known_distribution() -> None:
    labels = np.repeat([0, 1, 2, 3], [50, 30, 20, 0])
    found = estimate(NAMES, [certain(1, 50, 30, 20, 0)], labels)
    assert found.share.tolist() == [0.5, 0.3, 0.2, 0.0]
    assert found.truth is not None
    assert found.truth.tolist() == [0.5, 0.3, 0.2, 0.0]
    assert found.total_variation == 0
    assert (found.images, found.largest()) == (100, [0, 1, 2, 3])
    moved = estimate(NAMES, [certain(1, 40, 30, 20, 10)], labels)
    assert moved.total_variation == pytest.approx(0.1)  # ten images of a hundred
    assert moved.summary()["total_variation"] == moved.total_variation


def test_without_labels() -> None:
    found = estimate(NAMES, [certain(1, 4, 3, 2, 1)])
    assert found.truth is None
    assert found.summary()["total_variation"] is None


def test_wilsons_interval() -> None:
    low, high = wilson(np.array([0.0, 10.0, 50.0, 100.0]), 100)
    assert low == pytest.approx([0, 0.0552, 0.4038, 0.9630], abs=1e-4)  # as in tables
    assert high == pytest.approx([0.0370, 0.1744, 0.5962, 1], abs=1e-4)


def test_the_interval_holds_every_one_of_the_last_evaluations() -> None:
    looks = [certain(1, 60, 20, 20, 0), certain(2, 40, 40, 20, 0), certain(3, 50, 30, 20, 0)]
    found, last = estimate(NAMES, looks), estimate(NAMES, looks[-1:])
    assert (found.share == last.share).all()
    assert (found.evaluations, last.evaluations) == (3, 1)
    assert found.low is not None
    assert found.high is not None
    assert found.low[0] == wilson(np.array([40.0]), 100)[0][0]
    assert found.high[0] == wilson(np.array([60.0]), 100)[1][0]
    assert last.low is not None
    assert (found.low[2], found.low[0] < last.low[0]) == (last.low[2], True)  # the third class never moved


def test_the_networks_own_doubts_widen_it() -> None:
    sure = certain(1, 50, 30, 20, 0)
    # ten of the ants are not, by their confidences, and are dogs, by their probabilities
    doubtful = sure._replace(sure=[40.0, 30.0, 20.0, 0.0], mass=[40.0, 30.0, 20.0, 10.0])
    a, b = estimate(NAMES, [sure]), estimate(NAMES, [doubtful])
    assert a.low is not None
    assert a.high is not None
    assert b.low is not None
    assert b.high is not None
    assert a.low - b.low == pytest.approx([0.1, 0, 0, 0])
    assert b.high - a.high == pytest.approx([0, 0, 0, 0.1])
    assert (a.share == b.share).all()


def absent(found: Classes) -> list[bool]:
    assert found.absent is not None
    return [bool(value) for value in found.absent]


def test_probably_absent_is_below_a_tenth_of_the_fair_share_at_every_evaluation() -> None:
    assert absent(estimate(NAMES, [certain(1, 400, 576, 24, 0)])) == [False, False, True, True]
    assert absent(estimate(NAMES, [certain(1, 400, 575, 25, 0)])) == [False, False, False, True]  # a tenth
    before = certain(1, 400, 500, 50, 50)
    assert not any(absent(estimate(NAMES, [before, certain(2, 500, 500, 0, 0)])))
    assert count(NAMES, np.array([5, 1, 0, 0])).absent is None  # of one look at some images it cannot be known


def test_one_class() -> None:
    found = estimate(("all",), [certain(1, 7)], np.zeros(7, dtype=np.int64))
    assert (found.share.tolist(), absent(found), found.total_variation) == ([1.0], [False], 0.0)
    assert found.low is not None
    assert found.high is not None
    assert 0 < found.low[0] < found.high[0] == 1


def test_the_tally_of_an_evaluation() -> None:
    P = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1]])
    confidence, predictions = P.max(1)
    result = score(torch.arange(3), predictions, confidence, torch.tensor([0, 1, 1]), 3, mass=P.sum(0))
    found = tally(8, result)
    assert (found.step, found.predicted) == (8, [2, 1, 0])
    assert found.sure == pytest.approx([1.3, 0.8, 0])
    assert found.mass == pytest.approx([1.4, 1.3, 0.3])
    whole = score(torch.arange(3), predictions, confidence, torch.tensor([0, 1, 1]), 3)
    assert tally(8, whole).mass == [2, 1, 0]
    assert dataclasses.replace(result, mass=whole.mass).metrics() == whole.metrics()


def test_the_last_few_are_kept_and_none_twice() -> None:
    kept: list[Tally] = []
    for step in range(1, LAST + 4):
        kept = with_latest(kept, certain(step, step, 0))
    assert [one.step for one in kept] == list(range(4, LAST + 4))
    again = with_latest(kept, certain(LAST + 3, 99, 0))
    assert [one.step for one in again] == [one.step for one in kept]
    assert again[-1].predicted == [99, 0]


def test_an_evaluation_of_a_few_counts_as_one_of_all() -> None:
    """By what it differs from the final model on the same few, and not by how few they are."""
    final = Tally(4, [500, 300, 200], [450.0, 270.0, 180.0], [460.0, 320.0, 220.0])
    draw = Tally(4, [60, 25, 15], [54.0, 22.0, 14.0], [55.0, 27.0, 18.0])  # a draw that has more of the first
    assert of_all(draw._replace(step=3), draw, final) == final._replace(step=3)
    moved = of_all(Tally(2, [50, 35, 15], [45.0, 31.0, 14.0], [50.0, 32.0, 18.0]), draw, final)
    assert moved.predicted == pytest.approx([400, 400, 200])
    assert of_all(Tally(1, [400, 400, 200], [1.0] * 3, [1.0] * 3), draw, final).predicted == [400, 400, 200]
    whole = estimate(("a", "b", "c"), [final])
    both = estimate(("a", "b", "c"), [draw._replace(step=3), final], draw=draw)
    assert both.low == pytest.approx(whole.low)
    assert both.high == pytest.approx(whole.high)
    assert both.predicted.tolist() == [500, 300, 200]
