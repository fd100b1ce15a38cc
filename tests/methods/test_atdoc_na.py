"""ATDOC-NA against a plain computation of METHODS' formulas, written here with loops in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fastget.methods import neighbours
from fastget.methods.atdoc_na import AtdocNA, neighbour_labels
from fastget.methods.base import Seen, Task
from fastget.methods.pl import sharpen_by_column, weighted_cross_entropy

C, D, N = 4, 6, 30
Rows = list[list[float]]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def softmax(row: list[float]) -> list[float]:
    e = [math.exp(x - max(row)) for x in row]
    return [x / sum(e) for x in e]


def plain_vote(f: list[float], own: int, memory_f: Rows, memory_q: Rows, k: int) -> list[float] | None:
    """The mean of Q over the k largest inner products, the image itself and rows never filled left out."""
    near = [
        (sum(a * b for a, b in zip(f, row, strict=True)), j) for j, row in enumerate(memory_f) if j != own and any(row)
    ]
    best = [j for _, j in sorted(near, reverse=True)[:k]]
    return [sum(memory_q[j][c] for j in best) / len(best) for c in range(len(memory_q[0]))] if best else None


def plain_loss(z: Rows, votes: list[list[float] | None]) -> float:
    total, weights = 0.0, 0.0
    for row, vote in zip(z, votes, strict=True):
        if vote is not None:
            w = max(vote)
            total += w * -math.log(softmax(row)[vote.index(w)])
            weights += w
    return total / weights if weights else 0.0


def memory(seed: int = 3) -> tuple[Tensor, Tensor]:
    f = torch.nn.functional.normalize(random(N, D, seed=seed), dim=1)
    return f, torch.softmax(random(N, C, seed=seed + 1), 1) * (1 + torch.arange(N)[:, None] / N)


@pytest.mark.parametrize("k", [1, 5, N - 1, 3 * N])
@pytest.mark.parametrize("chunk", [7, 65_536])
def test_labels_and_weights(k: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "LOOK", chunk * 8 * (9 + D))
    memory_f, memory_q = memory()
    f, index = random(9, D, seed=1), torch.arange(9) * 3
    labels, weights = neighbour_labels(f, index, memory_f, memory_q, k)
    for b in range(9):
        vote = plain_vote(f[b].tolist(), 3 * b, memory_f.tolist(), memory_q.tolist(), k)
        assert vote is not None
        assert int(labels[b]) == vote.index(max(vote))
        assert float(weights[b]) == pytest.approx(max(vote), abs=1e-12)


def test_its_own_row_never_votes() -> None:
    memory_f, memory_q = torch.eye(3, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    labels, _ = neighbour_labels(memory_f[:1] + 0.1 * memory_f[1:2], torch.tensor([0]), memory_f, memory_q, 1)
    assert labels.tolist() == [1]


@pytest.mark.parametrize("filled", [0, 1, 2])
def test_rows_never_filled_do_not_vote(filled: int) -> None:
    """In the public code they vote for class 0."""
    memory_f, memory_q = (t.clone() for t in memory())
    memory_f[filled:] = 0
    memory_q[filled:] = 1 / C
    memory_q[:filled] = torch.tensor([0.0, 0, 0, 0.7])
    labels, weights = neighbour_labels(random(5, D), torch.full((5,), N - 1), memory_f, memory_q, 5)
    assert labels.tolist() == [3 if filled else -1] * 5
    assert weights.tolist() == pytest.approx([0.7 if filled else 0.0] * 5)
    z = random(5, C).requires_grad_()
    loss = weighted_cross_entropy(z, labels, weights)
    loss.backward()
    assert torch.isfinite(loss)
    assert z.grad is not None
    assert bool(z.grad.any()) == bool(filled)


def test_weighted_cross_entropy_and_its_gradient() -> None:
    z, labels = random(7, C).requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 0, 1])
    weights = torch.tensor([0.5, 0, 1.5, 0.2, 0.3, 0.9, 0.1], dtype=torch.float64, requires_grad=True)
    loss = weighted_cross_entropy(z, labels, weights)
    each = [-math.log(softmax(row)[y]) for row, y in zip(z.tolist(), labels.tolist(), strict=True)]
    wanted = sum(w * e for w, e in zip(weights.tolist(), each, strict=True)) / sum(weights.tolist())
    assert loss.item() == pytest.approx(wanted, abs=1e-9)
    loss.backward()
    onehot = torch.nn.functional.one_hot(labels, C)
    by_hand = (weights / weights.sum())[:, None] * (torch.softmax(z, 1) - onehot)
    torch.testing.assert_close(z.grad, by_hand.detach(), rtol=0, atol=1e-9)
    assert weights.grad is None  # the weights are constants


def test_sharpening() -> None:
    p = torch.softmax(random(5, C), 1)
    p[:, 2] = 0
    q = sharpen_by_column(p)
    for b in range(5):
        for c in range(C):
            column = sum(float(p[i, c]) ** 2 for i in range(5))
            assert float(q[b, c]) == pytest.approx(float(p[b, c]) ** 2 / column if column else 0.0, abs=1e-12)


@pytest.mark.parametrize("second_look", [False, True])
def test_steps_follow_a_plain_memory(second_look: bool) -> None:
    """Five steps: the loss and the memory against lists that are overwritten row by row."""
    method = AtdocNA(AtdocNA.Config(neighbours=3, second_look=second_look), Task(C, D, N)).double()
    plain_f, plain_q = [[0.0] * D for _ in range(N)], [[0.0] * C for _ in range(N)]
    for step in range(5):
        f, z = random(8, D, seed=10 + step), random(8, C, seed=20 + step)
        index = torch.randperm(N, generator=torch.Generator().manual_seed(step))[:8]
        seen = Seen(f, z, index, torch.nn.Linear(D, C), step / 5)
        term = method(seen)
        votes = [plain_vote(f[b].tolist(), int(index[b]), plain_f, plain_q, 3) for b in range(8)]
        assert float(term.loss) == pytest.approx(plain_loss(z.tolist(), votes), abs=1e-9)
        other = Seen(2 * f + 1, z - 0.5 * f[:, :C], index, seen.classifier, seen.progress)
        method.after_step(seen, term, None, lambda other=other: other)  # type: ignore[misc]  # a default of its own
        looked = other if second_look else seen
        p = [softmax(row) for row in looked.logits.tolist()]
        for b, i in enumerate(index.tolist()):
            length = math.sqrt(sum(x * x for x in looked.features[b].tolist()))
            plain_f[i] = [x / length for x in looked.features[b].tolist()]
            plain_q[i] = [p[b][c] ** 2 / sum(row[c] ** 2 for row in p) for c in range(C)]
    torch.testing.assert_close(method.memory_f, torch.tensor(plain_f, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(method.memory_q, torch.tensor(plain_q, dtype=torch.float64), rtol=0, atol=1e-9)


def test_a_skipped_step_leaves_the_memory() -> None:
    method = AtdocNA(AtdocNA.Config(), Task(C, D, N))
    seen = Seen(random(3, D).float(), random(3, C).float(), torch.tensor([4, 5, 6]), torch.nn.Linear(D, C), 0.0)
    term = method(seen)
    method.after_step(seen, term, torch.tensor(1.0), lambda: seen)
    assert not method.memory_f.any()
    method.after_step(seen, term, torch.tensor(0.0), lambda: seen)
    assert (method.memory_f.abs().sum(1) > 0).nonzero().flatten().tolist() == [4, 5, 6]


def test_a_memory_that_is_no_number_is_named() -> None:
    method = AtdocNA(AtdocNA.Config(), Task(C, D, N))
    method.check()
    bad: Any = random(2, C).float() * torch.nan
    seen = Seen(random(2, D).float(), bad, torch.tensor([0, 1]), torch.nn.Linear(D, C), 0.0)
    method.after_step(seen, method(seen), None, lambda: seen)
    with pytest.raises(ValueError, match="non-finite"):
        method.check()


def test_an_image_twice_in_a_batch_leaves_its_last_row() -> None:
    method = AtdocNA(AtdocNA.Config(), Task(C, D, N))
    f, z, index = random(5, D).float(), random(5, C).float(), torch.tensor([7, 3, 7, 3, 7])
    seen = Seen(f, z, index, torch.nn.Linear(D, C), 0.0)
    method.after_step(seen, method(seen), None, lambda: seen)
    q = sharpen_by_column(z.softmax(1))
    for row, image in ((4, 7), (3, 3)):
        torch.testing.assert_close(method.memory_f[image], torch.nn.functional.normalize(f[row], dim=0))
        torch.testing.assert_close(method.memory_q[image], q[row])


def test_the_figure_shows_the_classes_of_the_memory() -> None:
    """Not the mass of its columns, which every batch raises by 1 whatever it holds."""
    method = AtdocNA(AtdocNA.Config(), Task(C, D, N))
    z = 4 * torch.eye(C)[[0, 0, 0, 0, 0, 0, 2, 3]]
    seen = Seen(random(8, D).float(), z, torch.arange(8), torch.nn.Linear(D, C), 0.0)
    method.after_step(seen, method(seen), None, lambda: seen)
    shown = method.figures()
    assert shown["memory/filled"].item() == pytest.approx(8 / N)
    # a row of a crowded class is small in it, and may be larger in another: so the votes count, not the logits
    votes = torch.bincount(method.memory_q[:8].argmax(1), minlength=C) / 8
    torch.testing.assert_close(shown["memory/classes"], votes)
    assert shown["memory/classes"].sum().item() == pytest.approx(1)


def test_no_gradient_reaches_the_features_through_the_labels() -> None:
    method = AtdocNA(AtdocNA.Config(), Task(C, D, N))
    seen = Seen(random(4, D).float(), random(4, C).float(), torch.arange(4), torch.nn.Linear(D, C), 0.0)
    method.after_step(seen, method(seen), None, lambda: seen)
    f = random(3, D, seed=5).float().requires_grad_()
    z = random(3, C, seed=6).float().requires_grad_()
    method(Seen(f, z, torch.tensor([9, 8, 7]), seen.classifier, 0.5)).loss.backward()
    assert f.grad is None
    assert z.grad is not None
