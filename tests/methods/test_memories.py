"""The labels that ATDOC's memories give, and how centroids move, against `tests.methods.plain` in float64."""

import pytest
import torch
from torch import Tensor

from fastget.methods import formulas, neighbours
from tests.methods import plain
from tests.methods.plain import Rows, assert_equal, random, slopes

C, D, N = 4, 6, 30
FEATURES = {
    "random": random(9, D),
    "fewer rows than classes": random(2, D, seed=1),
    "one row": random(1, D, seed=2),
    "one-hot": 900 * torch.eye(D, dtype=torch.float64)[[0, 3, 3, 5]],
    "zeros": torch.zeros(3, D, dtype=torch.float64),
}
CENTROIDS = {
    "random": random(C, D, seed=3),
    "two classes": random(2, D, seed=4),
    "as they start": torch.nn.functional.normalize(random(C, D, seed=5).abs(), dim=1),
    "never visited": torch.zeros(C, D, dtype=torch.float64),
    "one never visited": torch.cat([random(C - 1, D, seed=6), torch.zeros(1, D).double()]),
}


# --- centroids -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FEATURES)
@pytest.mark.parametrize("kind", CENTROIDS)
def test_nearest_centroids(kind: str, case: str) -> None:
    f, memory = FEATURES[case], CENTROIDS[kind]
    labels = formulas.nearest_centroid_labels(f, memory)
    assert labels.tolist() == plain.nearest_centroid_labels(f.tolist(), memory.tolist())
    assert torch.equal(labels, formulas.nearest_centroid_labels(3 * f, 7 * memory))  # lengths do not matter


@pytest.mark.parametrize("labels", [[0, 0, 2, 0, 2], [3] * 5, [0, 1, 2, 3, 3], [1]])
@pytest.mark.parametrize("step", [0.1, 1.0])
def test_centroids_move(step: float, labels: list[int]) -> None:
    memory, f, r = random(C, D), random(len(labels), D, seed=1), random(C, D, seed=2)
    moved = formulas.update_centroids(memory, f, torch.tensor(labels), step)
    wanted = plain.update_centroids(memory.tolist(), f.tolist(), labels, step)
    assert_equal(moved, wanted)

    def weighed(old: Rows, rows: Rows) -> float:
        new = plain.update_centroids(old, rows, labels, step)
        return sum(plain.dot(a, b) for a, b in zip(r.tolist(), new, strict=True))

    given = memory.clone().requires_grad_(), f.clone().requires_grad_()
    value = (r * formulas.update_centroids(given[0], given[1], torch.tensor(labels), step)).sum()
    by_memory, by_f = torch.autograd.grad(value, given)
    assert_equal(by_memory, slopes(lambda rows: weighed(rows, f.tolist()), memory.tolist()))
    assert_equal(by_f, slopes(lambda rows: weighed(memory.tolist(), rows), f.tolist()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_class_that_nobody_predicts_stays(dtype: torch.dtype) -> None:
    """To the bit over 1,000 steps: in the public code it shrinks to nothing, and is no number after 470."""
    start = random(C, D).to(dtype)
    memory = start.clone()
    for step in range(1000):
        f = random(5, D, seed=step).to(dtype)
        memory = formulas.update_centroids(memory, f, torch.tensor([0, 0, 2, 0, 2]), 0.1)
    assert torch.equal(memory[[1, 3]], start[[1, 3]])
    assert torch.isfinite(memory).all()
    assert not torch.equal(memory[[0, 2]], start[[0, 2]])


# --- neighbours ----------------------------------------------------------------------------------


def memory(filled: int = N, classes: int = C) -> tuple[Tensor, Tensor]:
    """Unit features, and predictions whose rows do not sum to 1; the rows from `filled` on were never visited."""
    f = torch.nn.functional.normalize(random(N, D, seed=3, scale=1.0), dim=1)
    q = torch.softmax(random(N, classes, seed=4, scale=1.0), 1) * (1 + torch.arange(N)[:, None] / N)
    there = torch.arange(N)[:, None] < filled
    return torch.where(there, f, 0), torch.where(there, q, 0)


@pytest.mark.parametrize("k", [1, 5, N - 1, 3 * N])
@pytest.mark.parametrize("chunk", [7, 65_536])
@pytest.mark.parametrize("filled", [0, 1, 4, N])
@pytest.mark.parametrize("case", ["random", "fewer rows than classes", "one row"])
def test_neighbours(case: str, filled: int, chunk: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "LOOK", chunk * 8 * (9 + D))  # bytes of so many rows
    f = FEATURES[case].clone().requires_grad_()
    memory_f, memory_q = memory(filled, classes=2 if case == "one row" else C)
    index = torch.arange(len(f)) * 3
    labels, weights = formulas.neighbour_labels(f, index, memory_f, memory_q, k)
    wanted = plain.neighbour_labels(f.tolist(), index.tolist(), memory_f.tolist(), memory_q.tolist(), k)
    assert labels.tolist() == wanted[0]
    assert weights.tolist() == pytest.approx(wanted[1], rel=0, abs=1e-9)
    assert not weights.requires_grad  # constants, whatever the features carry


def test_its_own_row_never_votes() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    labels, _ = formulas.neighbour_labels(eye[:1] + 0.1 * eye[1:2], torch.tensor([0]), eye, eye, 1)
    assert labels.tolist() == [1]


@pytest.mark.parametrize("k", [1, 5])
def test_nobody_there_is_no_vote_for_class_0(k: int) -> None:
    """Neither in an empty memory, nor where the image's own row is the only one; one other row is enough."""
    f, index = FEATURES["random"], torch.zeros(9, dtype=torch.int64)
    for filled, label, weight in ((0, -1, 0.0), (1, -1, 0.0), (2, 3, 0.7)):
        memory_f, memory_q = memory(filled)
        memory_q[:filled] = torch.tensor([0.0, 0, 0, 0.7])
        memory_q[filled:] = 1 / C  # what the public code's rows hold before they are visited
        labels, weights = formulas.neighbour_labels(f, index, memory_f, memory_q, k)
        assert labels.tolist() == [label] * 9
        assert weights.tolist() == pytest.approx([weight] * 9)
        z = random(9, C).requires_grad_()
        value = formulas.weighted_cross_entropy(z, labels, weights)
        value.backward()
        assert torch.isfinite(value)
        assert z.grad is not None
        assert bool(z.grad.any()) == (label >= 0)


def test_votes_that_only_roundings_tell_apart_are_a_tie() -> None:
    """The columns of a batch sum to 1: where all of it votes every class has 1 / B, and ranks that add in another order
    must not differ by it."""
    q = formulas.sharpen_by_column(torch.softmax(random(5, 4, seed=8), 1))
    f = torch.nn.functional.normalize(random(6, D, seed=9), dim=1)
    memory_q = torch.cat([q, torch.zeros(1, 4, dtype=torch.float64)])
    for order in (torch.arange(5), torch.tensor([3, 1, 4, 0, 2])):
        memory_f = torch.cat([f[:5][order], f[5:]])
        labels, weights = formulas.neighbour_labels(f[5:], torch.tensor([5]), memory_f, memory_q, 5)
        assert labels.tolist() == [0]
        assert weights.item() == pytest.approx(0.2, abs=1e-12)
