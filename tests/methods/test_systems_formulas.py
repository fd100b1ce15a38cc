"""The formulas of the systems that the paper compares with, against NumPy in float64 to 1e-9: values, and gradients by
differences that leave alone what a formula holds constant."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fastget.bases.fixbi import FLOOR, self_penalties
from fastget.bases.s3d import s3d_margins
from fastget.methods import formulas, scda
from tests.methods import systems
from tests.methods.plain import random
from tests.methods.systems import Array
from tests.methods.test_formulas import LOGITS as FEW
from tests.methods.test_formulas import gradient

LOGITS = {**FEW, "one class": random(4, 1), "one row, one class": random(1, 1), "huge": 1e5 * random(5, 4, seed=11)}


def beside(z: Tensor) -> Tensor:
    """Other logits of as many rows and classes."""
    return random(*z.shape, seed=21)


def labels_of(z: Tensor) -> Tensor:
    return torch.arange(len(z)) % max(1, z.shape[1] - 1)  # the last class has no row, if there are several


class Formula(NamedTuple):
    """Of logits, and of others that stand beside them. `plain` takes NumPy's z, the other, and z and the other at which
    what is constant is computed."""

    found: Callable[[Tensor, Tensor], Tensor]
    plain: Callable[[Array, Array, Array, Array], float]
    both: bool = False  # whether the other logits get a gradient


def _labels(z: Array) -> Array:
    return labels_of(torch.from_numpy(z)).numpy()


FORMULAS = {
    "shot_im": Formula(lambda z, o: formulas.shot_im(z), lambda z, o, at, _: systems.shot_im(z)),
    "shot_im, not balanced": Formula(
        lambda z, o: formulas.shot_im(z, balance=False), lambda z, o, at, _: systems.shot_im(z, False)
    ),
    "scda_mi": Formula(lambda z, o: formulas.scda_mi(z), lambda z, o, at, _: -systems.shot_im(z)),
    "daln": Formula(formulas.daln, lambda z, o, at, _: systems.daln(z, o), both=True),
    "scda_pairs": Formula(
        lambda z, o: formulas.scda_pairs(o, labels_of(o), z, temperature=10.0, threshold=0.4),
        lambda z, o, at, _: systems.scda_pairs(o, _labels(o), z, 10.0, 0.4, at),
        both=True,
    ),
    "alpha_power": Formula(lambda z, o: formulas.alpha_power(z, 6.0), lambda z, o, at, _: systems.alpha_power(z, 6.0)),
    "fixbi_mixup": Formula(
        lambda z, o: formulas.fixbi_mixup(z, labels_of(z), o.argmax(1), 0.7),
        lambda z, o, at, _: systems.fixbi_mixup(z, _labels(z), o.argmax(1), 0.7),
    ),
    "fixbi_self_penalty": Formula(
        lambda z, o: formulas.fixbi_self_penalty(z, 5.0), lambda z, o, at, _: systems.fixbi_self_penalty(z, 5.0, at)
    ),
    "fixbi_matching": Formula(formulas.fixbi_matching, lambda z, o, at, of: systems.fixbi_matching(z, of)),
    "fixbi_consistency": Formula(
        formulas.fixbi_consistency, lambda z, o, at, _: float(((z - o) ** 2).mean()), both=True
    ),
    "ape_explore": Formula(
        lambda z, o: formulas.ape_explore(z, 0.5), lambda z, o, at, _: systems.ape_explore(z, 0.5, at)
    ),
    "ape_consistency": Formula(
        lambda z, o: formulas.ape_consistency(o, z), lambda z, o, at, of: systems.ape_consistency(of, z)
    ),
    "s3d_kd": Formula(
        lambda z, o: formulas.s3d_kd(o, z, 4.0), lambda z, o, at, of: 16 * systems.ape_consistency(of / 4, z / 4)
    ),
    "s3d_self": Formula(lambda z, o: formulas.s3d_self(z), lambda z, o, at, _: systems.s3d_self(z, at)),
}
KINKS = {"uniform", "one-hot", "huge", "one class", "one row, one class", "a class that nobody predicts"}


def close(found: Tensor, wanted: Any, size: float = 1.0) -> None:
    """To 1e-9, or as much of a size above 1: differences of large values round."""
    wanted = torch.as_tensor(np.asarray(wanted), dtype=torch.float64)
    torch.testing.assert_close(found.detach(), wanted, rtol=1e-12, atol=1e-9 * max(1.0, size))


@pytest.mark.parametrize("case", LOGITS)
@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_gradients(name: str, case: str) -> None:
    formula = FORMULAS[name]
    z, other = LOGITS[case].clone().requires_grad_(), beside(LOGITS[case]).requires_grad_()
    at, of = z.detach().numpy(), other.detach().numpy()
    value = formula.found(z, other)
    close(value, formula.plain(at, of, at, of))
    by_z, by_other = torch.autograd.grad(value, (z, other), allow_unused=True)
    assert torch.isfinite(by_z).all()
    assert (by_other is not None and bool(torch.isfinite(by_other).all())) is formula.both
    if name == "daln" and case in KINKS:  # singular values that are equal, or 0
        return
    if case == "huge":  # no difference of such values is a slope
        return
    size = value.abs().item()
    close(by_z, systems.slopes(lambda moved: formula.plain(moved, of, at, of), at), size)
    if by_other is not None:
        close(by_other, systems.slopes(lambda moved: formula.plain(at, moved, at, of), of), size)


@pytest.mark.parametrize("case", LOGITS)
@pytest.mark.parametrize("name", FORMULAS)
def test_float32_at_the_edges(name: str, case: str) -> None:
    formula = FORMULAS[name]
    z, other = LOGITS[case].float().requires_grad_(), beside(LOGITS[case]).float()
    at, of = z.detach().double().numpy(), other.double().numpy()
    value = formula.found(z, other)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(formula.plain(at, of, at, of), rel=2e-5, abs=2e-5)
    assert torch.isfinite(gradient(value, z)).all()


def test_what_is_constant_would_be_seen() -> None:
    """With the weights of `s3d_self` in the graph the gradient is another one. (Where the other logits are constant,
    `test_values_and_gradients` finds no gradient of them at all.)"""
    z = LOGITS["random"].clone().requires_grad_()
    leaky = systems.slopes(lambda moved: systems.s3d_self(moved, moved), z.detach().numpy())
    assert np.abs(gradient(formulas.s3d_self(z), z).numpy() - leaky).max() > 1e-3


# --- of other arguments --------------------------------------------------------------------------


def checked(formula: Callable[..., Tensor], *arguments: Tensor) -> None:
    given = tuple(a.clone().requires_grad_() for a in arguments)
    assert torch.autograd.gradcheck(formula, given, atol=1e-8, rtol=1e-6)


_actions, _y_s = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([0, 1, 0, 2])
DIFFERENTIABLE: dict[str, tuple[Any, ...]] = {
    "dann": (lambda d: formulas.dann(d, 3), random(7)),
    "hafn": (lambda f: formulas.hafn(f, 25.0), random(5, 6)),
    "daln": (formulas.daln, random(6, 4), random(5, 4, seed=1)),
    "scda_pairs": (lambda a, b: formulas.scda_pairs(a, _y_s, b, 10.0, 0.3), random(4, 3), random(5, 3, seed=1)),
    "scda_mi": (formulas.scda_mi, random(6, 4)),
    "shot_im": (formulas.shot_im, random(6, 4)),
    "aad": (lambda z: formulas.aad(z, torch.softmax(random(6, 3, 4, seed=1), 2), 0.7), random(6, 4)),
    "alpha_power": (lambda z: formulas.alpha_power(z, 6.0), random(6, 4)),
    "fixbi_self_penalty": (formulas.fixbi_self_penalty, random(6, 4), torch.tensor(5.0).double()),
    "fixbi_consistency": (formulas.fixbi_consistency, random(6, 4), random(6, 4, seed=1)),
    "ape_mmd": (formulas.ape_mmd, random(5, 3, scale=0.6), random(4, 3, seed=1, scale=0.6)),
    "s3d_kd": (lambda z: formulas.s3d_kd(random(6, 4, seed=1), z), random(6, 4)),
    "rtnet_errors": (lambda r: formulas.rtnet_errors(r, random(5, 6, seed=1)), random(5, 6)),
    "rtnet_actor": (lambda z: formulas.rtnet_actor(z, _actions, random(5, seed=1)), random(5, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_differences_of_the_formula_itself(name: str) -> None:
    formula, *arguments = DIFFERENTIABLE[name]
    checked(formula, *arguments)


@pytest.mark.parametrize(("rows", "sources"), [(7, 3), (7, 0), (7, 7), (1, 1)])
@pytest.mark.parametrize("scale", [1.0, 900.0])
def test_dann(rows: int, sources: int, scale: float) -> None:
    d = scale * random(rows, 1)
    close(formulas.dann(d, sources), systems.dann(d.numpy(), sources))
    assert torch.equal(formulas.dann(d, sources), formulas.dann(d[:, 0], sources))
    assert formulas.dann(torch.zeros(rows).double(), sources).item() == pytest.approx(
        math.log(2) / (1 if 0 < sources < rows else 2)
    )


def test_safn_is_a_constant_with_a_gradient() -> None:
    """The value is step^2, the gradient -2 step / B * f / |f|, and 0 where |f| is."""
    f = random(5, 6)
    f[2] = 0
    f.requires_grad_()
    for step in (1.0, 0.3):
        value = formulas.safn(f, step)
        assert value.item() == pytest.approx(step**2, abs=1e-12)
        assert value.item() == pytest.approx(systems.safn(f.detach().numpy(), step, f.detach().numpy()), abs=1e-12)
        close(gradient(value, f), (-2 * step / 5 * torch.nn.functional.normalize(f.detach(), dim=1)).numpy())
    checked(lambda x: formulas.hafn(x, 25.0), random(4, 3))
    close(formulas.hafn(f, 25.0), systems.hafn(f.detach().numpy(), 25.0))
    assert torch.isfinite(gradient(formulas.hafn(f, 25.0), f)).all()


def test_daln_of_perfect_predictions_is_0_and_of_worse_targets_positive() -> None:
    sure = 900 * torch.eye(4).double()
    assert formulas.daln(sure, sure).item() == pytest.approx(0, abs=1e-12)
    assert formulas.daln(sure, 0 * sure).item() == pytest.approx(1 - 0.25, abs=1e-9)  # |I| / 4 - 1 / 4 * |all 1/4|


def test_curves() -> None:
    for x in (0.0, 1e-9, 0.05, 0.25, 0.5, 1.0):
        scalar = torch.tensor(x, dtype=torch.float64)
        for curve, rate in ((formulas.warm_reversal, 20.0), (formulas.s3d_weight, 8.0)):
            wanted = 1.0 if curve is formulas.s3d_weight and x == 1 else systems.curve(x, rate)
            assert float(curve(x)) == pytest.approx(wanted, abs=1e-12)
            assert float(curve(scalar)) == float(curve(x))
    assert float(formulas.warm_reversal(1000 / 20_000)) == pytest.approx(0.46, abs=5e-3)
    assert float(formulas.warm_reversal(5000 / 20_000)) == pytest.approx(0.99, abs=5e-3)
    assert float(formulas.warm_reversal(0.25, rate=10.0)) == pytest.approx(systems.curve(0.25, 10.0), abs=1e-12)
    assert float(formulas.s3d_weight(7.0)) == 1
    assert float(formulas.s3d_weight(torch.tensor(7.0))) == 1


def test_scda_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    z_s, y_s = random(7, 3).requires_grad_(), torch.arange(7) % 3
    z = random(5, 3, seed=1).requires_grad_()
    whole = formulas.scda_pairs(z_s, y_s, z, threshold=0.5)
    slopes = torch.autograd.grad(whole, (z_s, z))
    monkeypatch.setattr(scda, "AT_ONCE", 2 * 5 * 3)
    parts = formulas.scda_pairs(z_s, y_s, z, threshold=0.5)
    close(parts, whole.detach())
    for one, other in zip(torch.autograd.grad(parts, (z_s, z)), slopes, strict=True):
        close(one, other)


def test_scda_without_pairs_is_0() -> None:
    z = random(4, 3).requires_grad_()
    value = formulas.scda_pairs(random(3, 3), torch.tensor([0, 1, 2]), z, threshold=1.1)
    assert value.item() == 0
    assert not gradient(value, z).any()


@pytest.mark.parametrize("threshold", [0, 2, 5, 1000])  # 1000: no class passes, so that every one with an image does
@pytest.mark.parametrize("classes", [1, 3, 6])
def test_shot_labels(threshold: float, classes: int) -> None:
    for seed in range(5):
        f, z = random(30, 8, seed=seed), random(30, classes, seed=seed + 50)
        z[:, -1] -= 900 if classes == 6 else 0  # a class that nobody predicts
        p = torch.softmax(z, 1)
        found = formulas.shot_labels(f, p, threshold)
        assert found.dtype == torch.int64
        assert found.tolist() == systems.shot_labels(f.numpy(), p.numpy(), threshold).tolist()
        assert classes < 6 or not (found == classes - 1).any()
        assert formulas.shot_labels(f.half(), p.half(), threshold).shape == (30,)


def test_shot_labels_of_one_image_and_of_lengthy_features() -> None:
    assert formulas.shot_labels(random(1, 8), torch.tensor([[0.2, 0.8]]), 0).tolist() == [1]
    f = torch.eye(3).repeat(4, 1).double()
    p = torch.softmax(5 * f, 1)
    p[0] = torch.tensor([0.1, 0.8, 0.1])  # one of the first group that the classifier takes for the second
    assert formulas.shot_labels(20 * f, p, 0).tolist() == [0, 1, 2] * 4


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_aad(rows: int, alpha: float) -> None:
    z, near = random(rows, 4).requires_grad_(), torch.softmax(random(rows, 3, 4, seed=1), 2).requires_grad_()
    value = formulas.aad(z, near, alpha)
    close(value, systems.aad(z.detach().numpy(), near.detach().numpy(), alpha))
    by_z, by_near = torch.autograd.grad(value, (z, near), allow_unused=True)
    close(by_z, systems.slopes(lambda moved: systems.aad(moved, near.detach().numpy(), alpha), z.detach().numpy()))
    assert by_near is None
    assert torch.isfinite(formulas.aad(1e5 * z, near, alpha))


def test_alpha_power_at_its_ends() -> None:
    assert formulas.alpha_power(torch.zeros(3, 4).double(), 6.0).item() == pytest.approx(-(4**-5))
    assert formulas.alpha_power(LOGITS["one-hot"], 6.0).item() == -1


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("n", [2, 3, 10, 60])
def test_arpm_weights(n: int, rho: float) -> None:
    for seed in range(6):
        d = random(n, seed=seed).requires_grad_()
        if seed == 5:
            d = d.detach().round()  # many that are equal
        w = formulas.arpm_weights(d, rho)
        assert not w.requires_grad
        assert (w >= 0).all()
        assert w.mean().item() == pytest.approx(1, abs=1e-12)
        assert (w - 1).square().mean().item() <= rho + 1e-9
        wanted = torch.from_numpy(systems.arpm_weights(d.detach().numpy(), rho))
        torch.testing.assert_close(w, wanted, rtol=0, atol=2e-6)  # a bisection's
        assert (w * d).sum().item() <= (wanted * d).sum().item() + 1e-9


def test_arpm_weights_at_the_edges() -> None:
    assert formulas.arpm_weights(torch.tensor([3.0]), 5.0).tolist() == [1]
    assert formulas.arpm_weights(torch.full((4,), 7.0), 5.0).tolist() == [1, 1, 1, 1]
    assert formulas.arpm_weights(torch.tensor([2.0, 1.0, 3.0]), 2.0).tolist() == [0, 3, 0]  # rho = n - 1
    assert formulas.arpm_weights(torch.tensor([1.0, 2.0, 1.0, 3.0]), 5.0).tolist() == [2, 0, 2, 0]
    tiny = torch.tensor([0.0, 1e-200, 3e-200], dtype=torch.float64)
    close(formulas.arpm_weights(tiny, 0.5), formulas.arpm_weights(tiny * 1e200, 0.5))


def test_rtnet() -> None:
    rebuilt, f, actions = random(5, 6), random(5, 6, seed=1).requires_grad_(), torch.tensor([0, 1, 1, 0, 1])
    errors = formulas.rtnet_errors(rebuilt, f)
    assert not errors.requires_grad  # the gradient is the decoder's
    close(errors, ((rebuilt - f.detach()).numpy() ** 2).sum(1) / 6)
    rewards = formulas.rtnet_rewards(errors, errors.mean(), 0.3, actions)
    close(rewards, np.where(actions.numpy() == 1, np.exp(-errors.numpy() / errors.numpy().mean()) - 0.3, 0))
    z, advantages = random(5, 2, seed=2).requires_grad_(), random(5, seed=3).requires_grad_()
    value = formulas.rtnet_actor(z, actions, advantages)
    close(value, systems.rtnet_actor(z.detach().numpy(), actions.numpy(), advantages.detach().numpy(), 0.01))
    assert torch.autograd.grad(value, (z, advantages), allow_unused=True)[1] is None


@pytest.mark.parametrize("case", LOGITS)
def test_fixbi_threshold(case: str) -> None:
    z = LOGITS[case].clone().requires_grad_()
    found = formulas.fixbi_threshold(z)
    close(found, systems.fixbi_threshold(z.detach().numpy()))
    assert not found.requires_grad
    assert (torch.softmax(z.float(), 1).amax(1) >= formulas.fixbi_threshold(z.float())).any()  # somebody is sure


def test_fixbi_penalty_of_a_part_of_the_rows() -> None:
    """A learned temperature; no row is 0, exactly one row counts, and a sure one is floored."""
    z, temperature = random(6, 4).requires_grad_(), torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    (by_t,) = torch.autograd.grad(formulas.fixbi_self_penalty(z, temperature), temperature)
    at = z.detach().numpy()
    close(by_t, systems.slopes(lambda T: systems.fixbi_self_penalty(at, float(T), at), np.array(5.0)))
    assert formulas.fixbi_self_penalty(z[:0], temperature).item() == 0
    close(formulas.fixbi_self_penalty(z[2:3], temperature), self_penalties(z, temperature)[2].detach())
    sure = torch.tensor([[900.0, 0.0, 0.0]], dtype=torch.float64)
    assert formulas.fixbi_self_penalty(sure, 5.0).item() == pytest.approx(-math.log(FLOOR))


@pytest.mark.parametrize(("n", "m"), [(5, 4), (1, 1), (3, 3)])
def test_ape_mmd(n: int, m: int) -> None:
    x, y = random(n, 6, scale=1.0).requires_grad_(), random(m, 6, seed=1, scale=1.0).requires_grad_()
    value = formulas.ape_mmd(x, y)
    close(value, systems.ape_mmd(x.detach().numpy(), y.detach().numpy()))
    a, b = x.detach().numpy(), y.detach().numpy()
    by_x, by_y = torch.autograd.grad(value, (x, y))
    close(by_x, systems.slopes(lambda moved: systems.ape_mmd(moved, b), a))
    close(by_y, systems.slopes(lambda moved: systems.ape_mmd(a, moved), b))
    same = formulas.ape_mmd(x, x)
    assert same.item() == pytest.approx(0, abs=1e-12)
    assert torch.isfinite(gradient(same, x)).all()
    assert formulas.ape_mmd(x[:0], y).item() == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("size", [1.0, 1e-30])
def test_ape_perturbation(dtype: torch.dtype, size: float) -> None:
    g = (size * random(4, 3, 5, 5)).to(dtype)
    g[1] = 0
    r = formulas.ape_perturbation(g.requires_grad_(), 25.0)
    assert r.dtype == dtype
    assert not r.requires_grad
    lengths = r.double().flatten(1).norm(dim=1)
    wanted = [0.0 if not row.any() else 25.0 for row in g]  # 1e-30 is 0 in float16
    torch.testing.assert_close(
        lengths, torch.tensor(wanted).double(), rtol=1e-3 if dtype == torch.float16 else 1e-6, atol=0
    )
    if dtype == torch.float64:
        flat = g.detach().flatten(1).numpy()
        norms = np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-99)
        close(r, (25 * flat / norms).reshape(g.shape))
    close(formulas.ape_perturbation(g.double(), torch.tensor(2.0)), formulas.ape_perturbation(g.double(), 2.0))


@pytest.mark.parametrize("shape", [(3, 4, 5, 2), (1, 1, 1, 1), (2, 3, 1, 1)])
def test_s3d_style(shape: tuple[int, ...]) -> None:
    x, other = random(*shape).requires_grad_(), random(*shape, seed=1)
    mean, std = formulas.s3d_statistics(other)
    for found, wanted in zip((mean, std), systems.s3d_statistics(other.numpy()), strict=True):
        close(found, wanted)
    assert not formulas.s3d_statistics(x)[0].requires_grad
    share = torch.linspace(0.2, 0.9, shape[0]).double()
    styled, at = formulas.s3d_style(x, mean, std, share), x.detach().numpy()
    arguments = (mean.numpy(), std.numpy(), share.numpy(), at)
    close(styled, systems.s3d_style(at, *arguments))
    r = random(*shape, seed=2)
    wanted = systems.slopes(lambda moved: float((r.numpy() * systems.s3d_style(moved, *arguments)).sum()), at)
    close(gradient((r * styled).sum(), x), wanted)  # with its statistics constant
    zeros, ones = torch.zeros(shape[0]), torch.ones(shape[0])
    close(formulas.s3d_style(x, mean, std, zeros), at)
    to_mean, to_std = formulas.s3d_statistics(formulas.s3d_style(x, mean, std, ones))
    close(to_mean, mean)
    if shape[-1] * shape[-2] > 1:
        torch.testing.assert_close(to_std, std, rtol=1e-5, atol=1e-5)  # 1e-6 is added twice
    assert formulas.s3d_style(x.half(), mean, std, share).dtype == torch.float16


@pytest.mark.parametrize("case", LOGITS)
def test_s3d_labels(case: str) -> None:
    z = LOGITS[case]
    for margin, confidence in ((0.0, 1.1), (1.5, 0.95), (1.5, 0.6), (1e9, 0.95)):
        assert (
            formulas.s3d_labels(z, margin, confidence).tolist()
            == systems.s3d_labels(z.numpy(), margin, confidence).tolist()
        )
    mean = s3d_margins(z).mean()
    assert torch.equal(formulas.s3d_labels(z, mean, 0.95), formulas.s3d_labels(z, mean.item(), 0.95))
