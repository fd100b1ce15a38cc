"""UMAP: its curve, its graph, and that neighbours stay neighbours."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.manifold import trustworthiness

from fastget.studies.report.umap import EPOCHS, curve, graph, memberships, schedule, umap


def groups() -> NDArray[np.float32]:
    """Four of 40 points each, in 12 dimensions."""
    rng = np.random.default_rng(0)
    return (np.repeat(3 * rng.normal(size=(4, 12)), 40, axis=0) + rng.normal(size=(160, 12))).astype(np.float32)


def test_the_curve_is_that_of_umap_learn() -> None:
    assert curve(0.1) == pytest.approx((1.5769434603, 0.8950608779), rel=1e-6)  # what umap-learn 0.5 finds
    assert curve(0.5) == pytest.approx((0.5830300205, 1.3341669924), rel=1e-4)


def test_a_row_adds_up() -> None:
    distances = np.sort(np.random.default_rng(0).uniform(0.5, 9, size=(50, 14)), axis=1)
    found = memberships(distances)
    assert found.sum(1) == pytest.approx(np.log2(15), rel=1e-6)
    assert (found[:, 0] == 1).all()
    assert (np.diff(found, axis=1) <= 0).all()
    assert (memberships(np.full((3, 14), 2.0)) == 1).all()  # all as near as the nearest: nothing to tell apart


def test_the_graph_joins_two_points_of_view() -> None:
    points = np.array([[0.0], [1.0], [2.5], [9.0]])
    edges = graph(points, 2)
    found = {(int(i), int(j)): float(w) for i, j, w in zip(*edges, strict=True)}
    assert all(found[j, i] == w for (i, j), w in found.items())
    assert found[0, 1] == 1  # each other's nearest
    assert (0, 3) not in found  # 0 is none of the two nearest of 3
    one, other = memberships(np.array([[1.0, 2.5], [1.0, 1.5], [1.5, 2.5], [6.5, 8.0]]))[[0, 2], 1]
    assert found[0, 2] == pytest.approx(one + other - one * other)


def test_an_edge_is_due_as_often_as_it_is_sure() -> None:
    weights = np.array([1.0, 0.5, 0.1, 1e-6])
    count = np.bincount(np.concatenate(list(schedule(weights))), minlength=4)
    assert count.tolist() == [EPOCHS, EPOCHS // 2, EPOCHS // 10, 0]


def test_neighbours_stay_neighbours_to_the_bit() -> None:
    points = groups()
    plane = umap(points)
    assert trustworthiness(points, plane, n_neighbors=10) > 0.95
    shuffled = plane.reshape(4, 40, 2)[:, np.random.default_rng(0).permutation(40)].reshape(160, 2)
    assert trustworthiness(points, shuffled, n_neighbors=10) < 0.95  # of the same group, yet not the same neighbours
    distance = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    own = np.arange(160) // 40
    same = own[:, None] == own[None]
    assert distance[same].mean() < 0.3 * distance[~same].mean()
    assert (umap(points) == plane).all()


def test_points_that_are_the_same() -> None:
    assert np.isfinite(umap(np.ones((40, 5), dtype=np.float32))).all()
