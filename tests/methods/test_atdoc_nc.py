"""ATDOC-NC's steps: labels from the centroids, centroids from the classifier's labels."""

import pytest
import torch

from fastget.methods import formulas
from fastget.methods.atdoc_nc import AtdocNC
from fastget.methods.base import Seen, Task
from tests.methods import plain
from tests.methods.plain import random

C, D = 4, 6


@pytest.mark.parametrize("second_look", [False, True])
def test_steps(second_look: bool) -> None:
    torch.manual_seed(0)
    method = AtdocNC(AtdocNC.Config(second_look=second_look), Task(C, D, 20)).double()
    memory = method.memory.clone()
    assert memory.norm(dim=1).tolist() == pytest.approx([1.0] * C)
    f, z = random(8, D), random(8, C, seed=1).requires_grad_()
    seen = Seen(f, z, torch.arange(8), torch.nn.Linear(D, C), 0.5)
    term = method(seen)
    labels = plain.nearest_centroid_labels(f.tolist(), memory.tolist())
    wanted = plain.weighted_cross_entropy(z.tolist(), labels, [1.0] * 8)
    assert term.loss.item() == pytest.approx(wanted, abs=1e-9)
    other = Seen(f + 1, -z.detach(), seen.index, seen.classifier, 0.5)
    method.after_step(seen.detached(), term, None, lambda: other)
    looked = other if second_look else seen
    torch.testing.assert_close(
        method.memory, formulas.update_centroids(memory, looked.features, looked.logits.argmax(1), 0.1)
    )
    before = method.memory.clone()
    method.after_step(seen.detached(), term, torch.tensor(1.0), lambda: other)
    assert torch.equal(method.memory, before)


def test_no_gradient_reaches_the_features_through_the_labels() -> None:
    method = AtdocNC(AtdocNC.Config(), Task(C, D, 20))
    f, z = random(5, D).float().requires_grad_(), random(5, C).float().requires_grad_()
    method(Seen(f, z, torch.arange(5), torch.nn.Linear(D, C), 0.5)).loss.backward()
    assert f.grad is None
    assert z.grad is not None
