"""UMAP (McInnes et al., 2018) of some thousand points, by NumPy: a graph of fuzzy neighbours, then its layout by
sampled gradient steps. Neighbours are found exactly, and the layout starts from PCA.

Shapes: M points, D their width, K neighbours, E edges of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
EPOCHS = 500
AGAINST = 5  # points that an edge's end is pushed away from, for each time it is pulled
PARTS = 8  # of an epoch: points move between them, as each sees few edges at a time
LIMIT = 4.0  # of a gradient's entries


class Edges(NamedTuple):
    """Both directions of each."""

    heads: Integers  # (E,)
    tails: Integers  # (E,)
    weights: Floats  # (E,) in (0, 1]


def umap(features: NDArray[np.float32], neighbours: int = 15, min_dist: float = 0.3, seed: int = 0) -> Floats:
    """(M, D) -> (M, 2); the same seed gives the same bits."""
    edges = graph(features.astype(np.float64), min(neighbours, len(features) - 1))
    rng = np.random.default_rng(seed)
    plane = rng.normal(scale=1e-4, size=(len(features), 2))  # points that are the same can part
    u, s, _ = np.linalg.svd(features.astype(np.float64) - features.mean(0, dtype=np.float64), full_matrices=False)
    plane[:, : min(2, len(s))] += (10 / max(float(np.abs(u[:, 0] * s[0]).max()), 1e-12) * u * s)[:, :2]
    a, b = curve(min_dist)
    for epoch, due in enumerate(schedule(edges.weights)):
        for some in np.array_split(rng.permutation(due), PARTS):
            _pull(plane, edges.heads[some], edges.tails[some], a, b, 1 - epoch / EPOCHS)
            _push(plane, edges.heads[some], rng, a, b, 1 - epoch / EPOCHS)
    return plane


def graph(features: Floats, neighbours: int) -> Edges:
    """How surely each point is a neighbour of another: a or b or both, of two points of view."""
    squares = (features**2).sum(1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * features @ features.T, 0))
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :neighbours]
    found = memberships(np.take_along_axis(distances, nearest, axis=1))
    one_way = np.zeros_like(distances)
    np.put_along_axis(one_way, nearest, found, axis=1)
    both = one_way + one_way.T - one_way * one_way.T
    heads, tails = np.nonzero(both)
    return Edges(heads, tails, both[heads, tails])


def memberships(distances: Floats) -> Floats:
    """(M, K) distances -> exp(-(d - rho) / sigma): rho is that to a point's nearest neighbour, and sigma such that a
    row's sum is log2 of the neighbours, the point itself counted among them."""
    rho = distances[:, :1]
    beyond = np.maximum(distances - rho, 0)
    wanted = np.log2(distances.shape[1] + 1)
    low, high = np.zeros_like(rho), np.full_like(rho, np.inf)
    sigma = np.ones_like(rho)
    for _ in range(64):
        more = np.exp(-beyond / sigma).sum(1, keepdims=True) > wanted
        high, low = np.where(more, sigma, high), np.where(more, low, sigma)
        sigma = np.where(np.isinf(high), 2 * sigma, (low + high) / 2)
    sigma = np.clip(sigma, 1e-3 * max(float(distances.mean()), 1e-12), None)
    found: Floats = np.exp(-beyond / sigma)
    return found


def curve(min_dist: float, spread: float = 1.0) -> tuple[float, float]:
    """a, b of 1 / (1 + a d^(2b)), nearest to 1 up to min_dist and to exp(-(d - min_dist) / spread) beyond."""
    from scipy.optimize import curve_fit

    x = np.linspace(0, 3 * spread, 300)
    y = np.where(x < min_dist, 1, np.exp(-(x - min_dist) / spread))
    (a, b), _ = curve_fit(lambda d, a, b: 1 / (1 + a * d ** (2 * b)), x, y)
    return float(a), float(b)


def schedule(weights: Floats) -> Iterator[Integers]:
    """The edges of each epoch: the surest in every one, the others as often as they are sure."""
    seldom = weights.max() / weights
    wanted = seldom <= EPOCHS  # the rest would never be due
    every, places = seldom[wanted], np.flatnonzero(wanted)
    due = every.copy()
    for epoch in range(1, EPOCHS + 1):
        now = due <= epoch
        due[now] += every[now]
        yield places[now]


def _pull(plane: Floats, heads: Integers, tails: Integers, a: float, b: float, rate: float) -> None:
    """Both ends of each edge towards each other."""
    apart = plane[heads] - plane[tails]
    square = np.maximum((apart**2).sum(1, keepdims=True), 1e-12)
    step = np.clip(-2 * a * b * square ** (b - 1) / (1 + a * square**b) * apart, -LIMIT, LIMIT)
    np.add.at(plane, heads, rate * step)
    np.add.at(plane, tails, -rate * step)


def _push(plane: Floats, heads: Integers, rng: np.random.Generator, a: float, b: float, rate: float) -> None:
    """The edges' heads away from some points, drawn by chance."""
    heads = np.repeat(heads, AGAINST)
    others = rng.integers(len(plane), size=len(heads))
    apart = plane[heads] - plane[others]
    square = (apart**2).sum(1, keepdims=True)
    step = np.clip(2 * b / ((0.001 + square) * (1 + a * square**b)) * apart, -LIMIT, LIMIT)
    np.add.at(plane, heads, rate * step)
