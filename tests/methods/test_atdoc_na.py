"""ATDOC-NA's steps against a plain memory, in lists of float64. (Its formulas are in test_memories.py.)"""

from typing import Any

import pytest
import torch

from fastget.methods.atdoc_na import AtdocNA
from fastget.methods.base import Seen, Task
from fastget.methods.pl import sharpen_by_column
from tests.methods import plain
from tests.methods.plain import assert_equal, random

C, D, N = 4, 6, 30


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
        labels, weights = plain.neighbour_labels(f.tolist(), index.tolist(), plain_f, plain_q, 3)
        wanted = plain.weighted_cross_entropy(z.tolist(), labels, weights)
        assert float(term.loss) == pytest.approx(wanted, abs=1e-9)
        other = Seen(2 * f + 1, z - 0.5 * f[:, :C], index, seen.classifier, seen.progress)
        method.after_step(seen, term, None, lambda other=other: other)  # type: ignore[misc]  # a default of its own
        looked = other if second_look else seen
        q = plain.sharpen_by_column([plain.softmax(row) for row in looked.logits.tolist()])
        for i, row, votes in zip(index.tolist(), looked.features.tolist(), q, strict=True):
            plain_f[i], plain_q[i] = [x / plain.length(row) for x in row], votes
    assert_equal(method.memory_f, plain_f)
    assert_equal(method.memory_q, plain_q)


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
