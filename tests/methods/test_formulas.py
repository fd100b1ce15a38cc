"""MinEnt, BNM, PL and NC's centroids against plain computations of METHODS' formulas, in loops and float64.

(MCC and ATDOC-NA have files of their own.)
"""

import math
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from fastget.methods import formulas
from fastget.methods.atdoc_nc import AtdocNC
from fastget.methods.base import Seen, Task
from fastget.methods.settings import BNMNorm

C, D = 4, 6


def random(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


LOGITS = {
    "random": random(9, C),
    "fewer rows than classes": random(3, 7, seed=1),
    "two classes": random(8, 2, seed=2),
    "one row": random(1, C, seed=3),
    "uniform": torch.zeros(6, C, dtype=torch.float64),
    "one-hot": 900 * torch.eye(C, dtype=torch.float64)[[0, 1, 1, 3, 3]],
    "a class that nobody predicts": torch.cat([random(7, 3, seed=4), torch.full((7, 1), -900.0).double()], 1),
}


def softmax(row: list[float]) -> list[float]:
    e = [math.exp(x - max(row)) for x in row]
    return [x / sum(e) for x in e]


def plain_minent(z: list[list[float]]) -> float:
    """(1 / B) sum_b H(p_b) / log C."""
    total = sum(-p * math.log(p) for row in z for p in softmax(row) if p > 0)
    return total / len(z) / math.log(len(z[0]))


def plain_bnm(z: list[list[float]], norm: str) -> float:
    values = np.linalg.svd(np.array([softmax(row) for row in z]), compute_uv=False)
    B, C = len(z), len(z[0])
    scales = {"atdoc": math.sqrt(min(B, C)) / B, "paper": 1 / B, "mean": 1 / min(B, C)}
    return -float(values.sum()) * scales[norm]


def plain_pl(z: list[list[float]]) -> float:
    """q_bc = p_bc^2 / sum_b' p_b'c^2; label argmax_c q_bc, weight max_c q_bc."""
    P = [softmax(row) for row in z]
    columns = [sum(row[c] ** 2 for row in P) for c in range(len(P[0]))]
    total, weights = 0.0, 0.0
    for row in P:
        q = [p**2 / max(column, 1e-12) for p, column in zip(row, columns, strict=True)]
        w = max(q)
        total += w * -math.log(row[q.index(w)])
        weights += w
    return total / weights


@pytest.mark.parametrize("case", LOGITS)
def test_values(case: str) -> None:
    z = LOGITS[case]
    assert formulas.minent(z).item() == pytest.approx(plain_minent(z.tolist()), abs=1e-9)
    for norm in get_args(BNMNorm):
        assert formulas.bnm(z, norm).item() == pytest.approx(plain_bnm(z.tolist(), norm), abs=1e-9)
    assert formulas.pl(z).item() == pytest.approx(plain_pl(z.tolist()), abs=1e-9)


def test_bnm_at_confident_balanced_predictions() -> None:
    """The values that METHODS gives for B = 36."""
    for classes, paper, mean, atdoc in ((65, 1.0, 1.0, 6.0), (31, 0.919, 1.067, 5.12), (12, 0.577, 1.732, 2.0)):
        z = 900 * torch.eye(classes, dtype=torch.float64)[torch.arange(36) % classes]
        assert formulas.bnm(z, "paper").item() == pytest.approx(-paper, abs=2e-3)
        assert formulas.bnm(z, "mean").item() == pytest.approx(-mean, abs=2e-3)
        assert formulas.bnm(z, "atdoc").item() == pytest.approx(-atdoc, abs=1e-2)


@pytest.mark.parametrize("case", ["random", "fewer rows than classes", "two classes", "one row"])
@pytest.mark.parametrize("formula", [formulas.minent, formulas.bnm, formulas.pl, formulas.mcc])
def test_finite_differences(formula: Callable[[Tensor], Tensor], case: str) -> None:
    """Of PL and MCC with their constants held: gradcheck would move them, so each entry is moved by hand."""
    z = LOGITS[case].clone().requires_grad_()
    (found,) = torch.autograd.grad(formula(z), z)
    if formula in (formulas.minent, formulas.bnm):
        assert torch.autograd.gradcheck(formula, (LOGITS[case].clone().requires_grad_(),), eps=1e-6, atol=1e-7)
    elif formula is formulas.pl:
        P = torch.softmax(LOGITS[case], 1)
        w, y = formulas.sharpen_by_column(P).max(1)
        by_hand = (w / w.sum())[:, None] * (P - torch.nn.functional.one_hot(y, P.shape[1]))
        torch.testing.assert_close(found, by_hand, rtol=0, atol=1e-9)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("case", ["uniform", "one-hot", "a class that nobody predicts"])
@pytest.mark.parametrize("formula", [formulas.minent, formulas.bnm, formulas.pl, formulas.mcc])
def test_gradients_at_the_edges_are_finite(formula: Callable[[Tensor], Tensor], case: str) -> None:
    for dtype in (torch.float64, torch.float32):
        z = LOGITS[case].clone().to(dtype).requires_grad_()
        formula(z).backward()
        assert z.grad is not None
        assert torch.isfinite(z.grad).all()


def test_bnm_of_what_is_no_number() -> None:
    """A loss of NaN, which float16's scaler skips: the decomposition itself would raise."""
    assert formulas.bnm(torch.full((3, 2), torch.nan)).isnan()


def test_pl_may_give_a_label_that_is_not_the_argmax() -> None:
    z = torch.tensor([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.6, 0.5]], dtype=torch.float64)
    labels = formulas.sharpen_by_column(torch.softmax(z, 1)).argmax(1)
    assert labels[3] == 1
    assert z[3].argmax() == 0


# --- centroids -----------------------------------------------------------------------------------


def test_nearest_centroids() -> None:
    f, memory = random(8, D), random(C, D, seed=1)
    for b, label in enumerate(formulas.nearest_centroid_labels(f, memory).tolist()):
        cosines = [
            sum(x * y for x, y in zip(f[b].tolist(), row, strict=True)) / math.sqrt(sum(y * y for y in row))
            for row in memory.tolist()
        ]
        assert label == cosines.index(max(cosines))
    torch.testing.assert_close(
        formulas.nearest_centroid_labels(f, 7 * memory), formulas.nearest_centroid_labels(f, memory)
    )  # a centroid's length does not matter


def test_centroids_move_and_an_empty_class_stays() -> None:
    memory, f, labels = random(C, D), random(5, D, seed=1), torch.tensor([0, 0, 2, 0, 2])
    moved = formulas.update_centroids(memory, f, labels, 0.1)
    for c in range(C):
        mine = [f[b].tolist() for b in range(5) if labels[b] == c]
        for d in range(D):
            before = float(memory[c, d])
            after = 0.9 * before + 0.1 * sum(row[d] for row in mine) / len(mine) if mine else before
            assert float(moved[c, d]) == pytest.approx(after, abs=1e-12)
    for _ in range(1000):
        memory = formulas.update_centroids(memory, f, labels, 0.1)
    assert torch.equal(memory[[1, 3]], random(C, D)[[1, 3]])  # to the bit


@pytest.mark.parametrize("second_look", [False, True])
def test_nc_steps(second_look: bool) -> None:
    torch.manual_seed(0)
    method = AtdocNC(AtdocNC.Config(second_look=second_look), Task(C, D, 20)).double()
    memory = method.memory.clone()
    assert memory.norm(dim=1).tolist() == pytest.approx([1.0] * C)
    f, z = random(8, D), random(8, C, seed=1).requires_grad_()
    seen = Seen(f, z, torch.arange(8), torch.nn.Linear(D, C), 0.5)
    term = method(seen)
    labels = formulas.nearest_centroid_labels(f, memory)
    expected = sum(-math.log(softmax(z[b].tolist())[int(labels[b])]) for b in range(8)) / 8
    assert term.loss.item() == pytest.approx(expected, abs=1e-9)
    other = Seen(f + 1, -z.detach(), seen.index, seen.classifier, 0.5)
    method.after_step(seen.detached(), term, None, lambda: other)
    looked = other if second_look else seen
    torch.testing.assert_close(
        method.memory, formulas.update_centroids(memory, looked.features, looked.logits.argmax(1), 0.1)
    )
    before = method.memory.clone()
    method.after_step(seen.detached(), term, torch.tensor(1.0), lambda: other)
    assert torch.equal(method.memory, before)
