"""Batches are a pure function of (seed, stream, step), on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastget.loading.sampling import Draw, EvalSampler, TrainSampler


def sampler(length: int, batch: int, **kwargs: object) -> TrainSampler:
    defaults: dict[str, object] = {"seed": 0, "stream": "source", "margin": 32, "flip": True}
    return TrainSampler(length, batch, **{**defaults, **kwargs})  # type: ignore[arg-type]


def same(one: Draw, other: Draw) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("index", "x", "y", "flip"))


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 300),
    per_rank=st.integers(1, 12),
    world=st.integers(1, 8),
    seed=st.integers(0, 2**63),
    stream=st.sampled_from(["source", "target", "labelled_target"]),
    epoch=st.integers(0, 3),
)
def test_epochs_ranks_and_seeking(length: int, per_rank: int, world: int, seed: int, stream: str, epoch: int) -> None:
    batch = per_rank * world
    whole = sampler(length, batch, seed=seed, stream=stream)
    steps = range(epoch * whole.steps_per_epoch, (epoch + 1) * whole.steps_per_epoch)
    walked = [whole(step) for step in steps]
    seen = np.concatenate([draw.index for draw in walked])
    if batch <= length:  # a permutation with its tail dropped
        assert len(seen) == length // batch * batch
        assert len(set(seen.tolist())) == len(seen)
    else:  # the list is repeated until it fills the batch
        counts = np.bincount(seen, minlength=length)
        assert counts.max() - counts.min() <= 1
    assert set(seen.tolist()) <= set(range(length))
    # Going to the last step at once is the same as walking there.
    assert same(sampler(length, batch, seed=seed, stream=stream)(steps[-1]), walked[-1])
    # The ranks cut the batch into parts.
    ranks = [sampler(length, batch, seed=seed, stream=stream, rank=r, world=world) for r in range(world)]
    for name in ("index", "x", "y", "flip"):
        parts = np.concatenate([getattr(rank(steps[-1]), name) for rank in ranks])
        assert np.array_equal(parts, getattr(walked[-1], name))
    stand_ins = [rank.replacement(steps[-1], row, 1) for rank in ranks for row in range(per_rank)]
    assert stand_ins == [whole.replacement(steps[-1], row, 1) for row in range(batch)]
    assert all(0 <= index < length for index in stand_ins)


@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 200), batch=st.integers(1, 40), world=st.integers(1, 8))
def test_evaluation_sees_every_image_once(length: int, batch: int, world: int) -> None:
    seen = []
    for rank in range(world):
        one = EvalSampler(length, batch, margin=32, rank=rank, world=world)
        for step in range(one.steps):
            draw = one(step)
            seen += draw.index.tolist()
            assert set(draw.x.tolist()) == {16}
            assert not draw.flip.any()
        with pytest.raises(StopIteration):
            one(one.steps)
    assert sorted(seen) == list(range(length))


def rank_correlation(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    return float(np.corrcoef(np.argsort(one), np.argsort(other))[0, 1])


def test_two_epochs_are_uncorrelated() -> None:
    whole = sampler(20_000, 20_000)
    first, second = whole(0).index, whole(1).index
    assert abs(rank_correlation(first, second)) < 0.05
    assert abs(rank_correlation(first, np.arange(20_000))) < 0.05
    assert abs(rank_correlation(first, sampler(20_000, 20_000, seed=1)(0).index)) < 0.05
    assert abs(rank_correlation(first, sampler(20_000, 20_000, stream="target")(0).index)) < 0.05


def test_crops_and_flips_are_spread_evenly() -> None:
    draws = [sampler(360, 36)(step) for step in range(300)]
    x, y, flip = (np.concatenate([getattr(d, name) for d in draws]) for name in ("x", "y", "flip"))
    for edge in (x, y):
        assert (edge.min(), edge.max()) == (0, 32)
        assert abs(edge.mean() - 16) < 0.5
    assert abs(flip.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.05
    assert not any(sampler(360, 36, flip=False)(step).flip.any() for step in range(10))


def test_two_views_show_the_same_images_otherwise_cropped() -> None:
    draw = sampler(100, 20, views=2)(3)
    assert draw.second
    assert np.array_equal(draw.index, draw.second.index)
    assert not np.array_equal(draw.x, draw.second.x)
    assert same(draw, sampler(100, 20)(3))  # the first view is the one of a stream with a single view
    assert sampler(100, 20)(3).second is None


def test_wrong_sizes() -> None:
    with pytest.raises(ValueError, match="cannot be cut into 4 equal parts"):
        sampler(100, 10, world=4)
    with pytest.raises(ValueError, match="holds no image"):
        sampler(0, 10)
