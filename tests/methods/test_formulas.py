"""Every formula of METHODS against `tests.methods.plain`, in float64 to 1e-9: values, and gradients by differences.

(The labels of memories are in test_memories.py, the formulas of other systems in test_systems_formulas.py.)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import pytest
import torch
from torch import Tensor

from fastget import methods
from fastget.methods import formulas
from fastget.methods.base import Seen, Task
from fastget.methods.settings import BNMNorm
from tests.methods import plain, systems
from tests.methods.plain import Rows, assert_equal, random, slopes

C, D, N = 4, 6, 12


def beside(rows: int, column: float) -> Tensor:
    """Random logits, and a class that all rows give this one."""
    return torch.cat([random(rows, C - 1, seed=4), torch.full((rows, 1), column).double()], 1)


LOGITS = {
    "random": random(7, C),
    "fewer rows than classes": random(3, 6, seed=1),
    "two classes": random(6, 2, seed=2),
    "one row": random(1, C, seed=3),
    "a class that nobody predicts": beside(6, -900.0),
    "a class that hardly anybody predicts": beside(6, -25.0) + random(6, C, seed=5, scale=0.5),
    "uniform": torch.zeros(5, C, dtype=torch.float64),
    "one-hot": 1800 * torch.eye(C, dtype=torch.float64)[[0, 1, 1, 3, 3]] - 900,
}


class Loss(NamedTuple):
    formula: Callable[[Tensor], Tensor]
    plain: Callable[[Rows, Rows], float]  # of logits, and of those at which what is constant is computed


LOSSES = {
    "minent": Loss(formulas.minent, lambda z, at: plain.minent(z)),
    "mcc": Loss(formulas.mcc, lambda z, at: plain.mcc(z, at, 1.0)),
    "mcc, temperature 2.5": Loss(lambda z: formulas.mcc(z, 2.5), lambda z, at: plain.mcc(z, at, 2.5)),
    "pl": Loss(formulas.pl, plain.pl),
    "mme": Loss(formulas.mme, lambda z, at: plain.mme(z, 0.1)),
    "mme, weight 3": Loss(lambda z: formulas.mme(z, 3.0), lambda z, at: plain.mme(z, 3.0)),
    "bnm": Loss(formulas.bnm, lambda z, at: plain.bnm(z, "atdoc")),
    "bnm, paper": Loss(lambda z: formulas.bnm(z, "paper"), lambda z, at: plain.bnm(z, "paper")),
    "bnm, mean": Loss(lambda z: formulas.bnm(z, "mean"), lambda z, at: plain.bnm(z, "mean")),
}
KINKS = ("uniform", "one-hot")  # singular values that are equal, or 0: BNM has no one gradient there


def gradient(value: Tensor, of: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(value, of)
    return found


@pytest.mark.parametrize("case", LOGITS)
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, case: str) -> None:
    formula, wanted = LOSSES[name]
    z, rows = LOGITS[case].clone().requires_grad_(), LOGITS[case].tolist()
    value = formula(z)
    assert value.item() == pytest.approx(wanted(rows, rows), rel=0, abs=1e-9)
    found = gradient(value, z)
    if name.startswith("bnm") and case in KINKS:
        assert torch.isfinite(found).all()
    else:
        assert_equal(found, slopes(lambda moved: wanted(moved, rows), rows))


@pytest.mark.parametrize("name", ["mcc", "pl"])
def test_what_is_constant_would_be_seen(name: str) -> None:
    """With MCC's entropy weights, or PL's weights, in the graph the gradient is another one."""
    formula, wanted = LOSSES[name]
    z = LOGITS["random"].clone().requires_grad_()
    leaky = slopes(lambda moved: wanted(moved, moved), z.tolist())
    assert (gradient(formula(z), z) - leaky).abs().max() > 1e-3


@pytest.mark.parametrize("case", ["random", "fewer rows than classes", "two classes", "one row"])
@pytest.mark.parametrize("name", ["minent", "mme", "bnm"])
def test_differences_of_the_formula_itself(name: str, case: str) -> None:
    """Of those that hold nothing constant."""
    assert torch.autograd.gradcheck(LOSSES[name].formula, (LOGITS[case].clone().requires_grad_(),), atol=1e-7)


def test_minent_is_between_0_and_1() -> None:
    assert formulas.minent(LOGITS["uniform"]).item() == pytest.approx(1, abs=1e-15)
    assert formulas.minent(LOGITS["one-hot"]).item() == 0


def test_bnm_at_confident_balanced_predictions() -> None:
    """The values that METHODS gives for B = 36."""
    for classes, paper, mean, atdoc in ((65, 1.0, 1.0, 6.0), (31, 0.919, 1.067, 5.12), (12, 0.577, 1.732, 2.0)):
        z = 900 * torch.eye(classes, dtype=torch.float64)[torch.arange(36) % classes]
        assert formulas.bnm(z, "paper").item() == pytest.approx(-paper, abs=2e-3)
        assert formulas.bnm(z, "mean").item() == pytest.approx(-mean, abs=2e-3)
        assert formulas.bnm(z, "atdoc").item() == pytest.approx(-atdoc, abs=1e-2)


def test_bnm_of_what_is_no_number() -> None:
    """A loss of NaN, which float16's scaler skips: the decomposition itself would raise."""
    assert formulas.bnm(torch.full((3, 2), torch.nan)).isnan()


# --- labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", LOGITS)
def test_sharpening(case: str) -> None:
    p = torch.tensor([plain.softmax(row) for row in LOGITS[case].tolist()], dtype=torch.float64)
    assert_equal(formulas.sharpen_by_column(p), plain.sharpen_by_column(p.tolist()))


def test_sharpening_has_a_gradient() -> None:
    p, r = torch.softmax(random(5, C, scale=0.3), 1).requires_grad_(), random(5, C, seed=1)
    found = gradient((r * formulas.sharpen_by_column(p)).sum(), p)

    def wanted(rows: Rows) -> float:
        return sum(plain.dot(a, b) for a, b in zip(r.tolist(), plain.sharpen_by_column(rows), strict=True))

    assert_equal(found, slopes(wanted, p.tolist()))


def test_pl_may_give_a_label_that_is_not_the_argmax() -> None:
    z = torch.tensor([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.6, 0.5]], dtype=torch.float64)
    labels = formulas.sharpen_by_column(torch.softmax(z, 1)).argmax(1)
    assert labels[3] == 1
    assert z[3].argmax() == 0


@pytest.mark.parametrize("case", LOGITS)
def test_weighted_cross_entropy(case: str) -> None:
    z, rows = LOGITS[case].clone().requires_grad_(), LOGITS[case].tolist()
    labels = [b % len(rows[0]) for b in range(len(rows))]
    weights = torch.linspace(0.2, 1.7, len(rows), dtype=torch.float64).requires_grad_()
    with torch.no_grad():
        labels[1:2], weights[1:2] = [-1] * len(labels[1:2]), 0
    value = formulas.weighted_cross_entropy(z, torch.tensor(labels), weights)

    def wanted(moved: Rows) -> float:
        return plain.weighted_cross_entropy(moved, labels, weights.tolist())

    assert value.item() == pytest.approx(wanted(rows), rel=0, abs=1e-9)
    by_z, by_weights = torch.autograd.grad(value, (z, weights), allow_unused=True)
    assert_equal(by_z, slopes(wanted, rows))
    assert by_weights is None  # constants


def test_no_weight_at_all_is_no_loss() -> None:
    z = LOGITS["random"].clone().requires_grad_()
    value = formulas.weighted_cross_entropy(z, torch.full((len(z),), -1), torch.zeros(len(z)).double())
    assert value.item() == 0
    assert not gradient(value, z).any()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("case", LOGITS)
def test_guesses(case: str, temperature: float) -> None:
    z1 = LOGITS[case].clone().requires_grad_()
    for z2 in (random(*z1.shape, seed=9), z1, z1.flip(0)):
        found = formulas.mixmatch_guess(z1, z2, temperature)
        assert_equal(found, plain.mixmatch_guess(z1.tolist(), z2.tolist(), temperature))
        assert not found.requires_grad  # a constant


# --- CDAN+E --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 900.0])  # of the discriminator's logits: 900 is as sure as it can be
@pytest.mark.parametrize("case", LOGITS)
def test_cdan(case: str, scale: float) -> None:
    """All three arguments: d, and the entropies of both domains, whose sums are constants."""
    target = LOGITS[case]
    source = random(4, target.shape[1], seed=7)
    d = scale * random(len(source) + len(target), seed=8, scale=1.0)
    given = [t.clone().requires_grad_() for t in (d, source, target)]
    value = formulas.cdan_entropy(given[0], given[1], given[2])
    d_row, z_s, z = d.tolist(), source.tolist(), target.tolist()
    wanted = plain.cdan_entropy(d_row, z_s, z, z_s, z)
    assert value.item() == pytest.approx(wanted, rel=0, abs=1e-9)
    found = torch.autograd.grad(value, given)
    by_d = slopes(lambda rows: plain.cdan_entropy(rows[0], z_s, z, z_s, z), [d_row])
    by_source = slopes(lambda rows: plain.cdan_entropy(d_row, rows, z, z_s, z), z_s)
    by_target = slopes(lambda rows: plain.cdan_entropy(d_row, z_s, rows, z_s, z), z)
    for one, other in zip(found, (by_d[0], by_source, by_target), strict=True):
        assert_equal(one, other)


def test_cdan_takes_a_column_and_carries_the_entropies() -> None:
    d, z_s, z = random(7, 1), random(3, C, seed=1).requires_grad_(), random(4, C, seed=2).requires_grad_()
    value = formulas.cdan_entropy(d, z_s, z)
    assert torch.equal(value, formulas.cdan_entropy(d[:, 0], z_s, z))
    for of in (z_s, z):
        assert gradient(formulas.cdan_entropy(d, z_s, z), of).abs().max() > 1e-3


# --- all of them ---------------------------------------------------------------------------------

_z, _labels = random(6, C), torch.tensor([0, 1, 2, 3, 0, 2])
_f, _memory_f = random(6, D, seed=1), torch.nn.functional.normalize(random(N, D, seed=2), dim=1)
CALLS: dict[str, tuple[Any, ...]] = {
    "minent": (_z,),
    "bnm": (_z, "paper"),
    "mcc": (_z, 2.5),
    "pl": (_z,),
    "mme": (_z, 0.1),
    "nearest_centroid_labels": (_f, random(C, D, seed=3)),
    "update_centroids": (random(C, D, seed=3), _f, _labels, 0.1),
    "neighbour_labels": (_f, torch.arange(6), _memory_f, torch.softmax(random(N, C, seed=4), 1), 3),
    "weighted_cross_entropy": (_z, _labels, torch.linspace(0, 1, 6).double()),
    "sharpen_by_column": (torch.softmax(_z, 1),),
    "cdan_entropy": (random(10, seed=5), random(4, C, seed=6), _z),
    "mixmatch_guess": (_z, random(6, C, seed=7), 0.5),
    **systems.CALLS,
}


def called(name: str, arguments: tuple[Any, ...]) -> list[Tensor]:
    found = getattr(formulas, name)(*arguments)
    return [found] if isinstance(found, Tensor) else list(found)


def test_no_formula_is_left_out() -> None:
    assert set(CALLS) == set(formulas.__all__)


@pytest.mark.parametrize("name", CALLS)
def test_no_argument_is_changed(name: str) -> None:
    before = [a.clone() if isinstance(a, Tensor) else a for a in CALLS[name]]
    given = tuple(a.clone().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in before)
    for result in called(name, given):
        if result.requires_grad:
            result.sum().backward()
    for a, b in zip(given, before, strict=True):
        assert torch.equal(a, b) if isinstance(b, Tensor) else a == b


@pytest.mark.parametrize("name", CALLS)
def test_float32(name: str) -> None:
    single = tuple(a.float() if isinstance(a, Tensor) and a.is_floating_point() else a for a in CALLS[name])
    for found, wanted in zip(called(name, single), called(name, CALLS[name]), strict=True):
        if wanted.is_floating_point():
            assert found.dtype == torch.float32
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("case", LOGITS)
@pytest.mark.parametrize("name", LOSSES)
def test_float32_at_the_edges(name: str, case: str) -> None:
    formula, wanted = LOSSES[name]
    z = LOGITS[case].float().requires_grad_()
    rows = z.tolist()
    value = formula(z)
    assert value.item() == pytest.approx(wanted(rows, rows), rel=1e-5, abs=1e-5)
    assert torch.isfinite(gradient(value, z)).all()


@pytest.mark.parametrize(
    ("name", "own", "loss"),
    [
        ("minent", {}, "minent"),
        ("mcc", {"temperature": 2.5}, "mcc, temperature 2.5"),
        ("pl", {}, "pl"),
        *[("bnm", {"norm": norm}, "bnm" if norm == "atdoc" else f"bnm, {norm}") for norm in get_args(BNMNorm)],
    ],
)
def test_the_method_is_the_formula(name: str, own: dict[str, Any], loss: str) -> None:
    z = random(6, C)
    method = methods.method_of(name)(methods.settings_of(name)(**own), Task(C, D, N))
    term = method(Seen(random(6, D), z, torch.arange(6), torch.nn.Linear(D, C), 0.5))
    assert term.loss.item() == pytest.approx(LOSSES[loss].plain(z.tolist(), z.tolist()), abs=1e-9)
    assert not list(method.parameters())
    assert not list(method.buffers())


@pytest.mark.parametrize("formula", [formulas.minent, formulas.mme])
def test_a_class_that_is_ruled_out(formula: Callable[[Tensor], Tensor]) -> None:
    """A logit of -inf: the value is that of the other classes, and the gradient finite."""
    z = torch.tensor([[0.3, -0.2, -torch.inf], [1.0, 2.0, -torch.inf]], dtype=torch.float64, requires_grad=True)
    value = formula(z)
    value.backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()
    scale = math.log(2) / math.log(3) if formula is formulas.minent else 1.0
    assert value.item() == pytest.approx(scale * formula(z.detach()[:, :2]).item(), abs=1e-12)


def test_a_row_without_a_label_weighs_nothing() -> None:
    z = random(3, 4)
    labels, weights = torch.tensor([2, -1, 1]), torch.tensor([0.5, 0.7, 0.2], dtype=torch.float64)
    kept = torch.tensor([0, 2])
    wanted = formulas.weighted_cross_entropy(z[kept], labels[kept], weights[kept])
    torch.testing.assert_close(formulas.weighted_cross_entropy(z, labels, weights), wanted)


def test_cdan_of_one_domain_alone() -> None:
    """sum v BCE / sum v, whatever the sum is."""
    d, z = torch.zeros(4, dtype=torch.float64), random(4, 3)
    assert formulas.cdan_entropy(d, z, z[:0]).item() == pytest.approx(math.log(2), abs=1e-12)
