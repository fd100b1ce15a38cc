"""The alpha-power method: its formula, through features alone."""

import pytest
import torch
from torch import Tensor, nn

from fastget.methods import formulas
from fastget.methods.alpha_power import AlphaPower
from fastget.methods.base import Seen, Task
from fastget.methods.settings import AlphaPowerSettings
from fastget.networks.network import CosineHead
from tests.methods.plain import assert_equal, random

C, D = 4, 6


def seen_by(head: nn.Linear, f: Tensor) -> Seen:
    return Seen(f, head(f), torch.arange(len(f)), head, 0.5)


@pytest.mark.parametrize("head", [nn.Linear(D, C), CosineHead(D, C, 0.5)])
@pytest.mark.parametrize("alpha", [6.0, 2.0])
def test_the_gradient_goes_to_the_features_alone(head: nn.Linear, alpha: float) -> None:
    f = random(5, D).requires_grad_()
    term = AlphaPower(AlphaPowerSettings(alpha=alpha), Task(C, D, 50))(seen_by(head.double(), f))
    wanted = formulas.alpha_power(head(f), alpha)
    assert_equal(term.loss, wanted)
    parameters = list(head.parameters())
    by_f, *by_head = torch.autograd.grad(term.loss, (f, *parameters), allow_unused=True)
    assert_equal(by_f, torch.autograd.grad(wanted, f)[0])
    assert by_head == [None] * len(parameters)


def test_half_features_are_summed_in_float32() -> None:
    head = nn.Linear(D, C)
    seen = seen_by(head, random(5, D).float())
    half = Seen(seen.features.half(), seen.logits, seen.index, head, 0.5)
    method = AlphaPower(AlphaPowerSettings(), Task(C, D, 50))
    assert method(half).loss.dtype == torch.float32
    torch.testing.assert_close(method(half).loss, method(seen).loss, rtol=1e-2, atol=0)
