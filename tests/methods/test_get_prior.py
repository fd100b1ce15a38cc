"""What fastget adds to the paper, (3'), (3*), (12), (13), (2') and (6'), against NumPy from METHOD.md: at its edges, in
a module that is copied, moved and loaded, and over whole runs of steps."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastget
from fastget import reference as R
from fastget.methods.base import Task
from fastget.methods.get.method import GetMethod
from fastget.methods.get.prior import COUNT_FLOOR, PriorRule, agreeing_votes, nearest, start_of
from fastget.methods.settings import Get

C, D = 4, 6


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def wide(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def simplex(*weights: float) -> Tensor:
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


def close(found: Tensor, expected: Any, within: float = 1e-12) -> None:
    np.testing.assert_allclose(found.detach().numpy(), np.asarray(expected), rtol=0, atol=within)


# --- edges of the rule -------------------------------------------------------------------------


def votes_of(table: list[list[float]]) -> Tensor:
    """Of a table of images: row a, column b, as the two labellers have it."""
    counts = np.array(table, dtype=float)
    return torch.tensor(np.stack([counts.sum(1), counts.sum(0), np.diag(counts)]))


@pytest.mark.parametrize(("agree", "trust"), [(69, 0.0), (71, 0.1), (75, 0.5), (79, 0.9), (81, 1.0), (100, 1.0)])
def test_trust_rises_from_kappa_0_4_to_0_6(agree: int, trust: float) -> None:
    """Two even classes: kappa is 2 r - 1."""
    _, found, agreement = start_of(votes_of([[agree, 100 - agree], [100 - agree, agree]]))
    assert agreement[1].item() == pytest.approx(agree / 50 - 1)
    assert found.item() == pytest.approx(trust, abs=1e-12)


@pytest.mark.parametrize(
    ("table", "pi", "agreement", "kappa", "trust"),
    [
        ([[0, 5], [5, 0]], [0.5, 0.5], 0, -1, 0),  # nobody agrees: nothing is known
        ([[10, 0], [0, 0]], [1, 1e-4], 1, 0, 0),  # both put everything into one class: agreement by chance
        ([[0, 10], [0, 0]], [0.5, 0.5], 0, 0, 0),  # each into another one
        ([[4, 4], [1, 1]], [0.8, 0.2], 0.5, 0, 0),  # independent of each other
        ([[9, 0], [0, 1]], [0.9, 0.1], 1, 1, 1),  # all agree
        ([[1, 0], [0, 0]], [1, 1e-4], 1, 0, 0),  # one image
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges_of_kappa(
    table: list[list[float]], pi: list[float], agreement: float, kappa: float, trust: float, dtype: torch.dtype
) -> None:
    start = start_of(votes_of(table).to(dtype))
    close(start[0].double(), np.array(pi) / sum(pi), 1e-7)
    close(torch.cat([start[1][None], start[2]]).double(), [trust, agreement, kappa], 1e-6)
    assert all(x.dtype == dtype for x in start)


def test_nearest() -> None:
    cos = torch.tensor([[0.1, 0.9, 0.2], [0.5, 0.5, 0.1], [0.0, 0.0, 0.0]])
    close(nearest(cos, -cos, 0.1), [[0, 1, 0], [1, 0, 0], [1, 0, 0]])  # the lowest on a tie; no look at mu_g


def test_agreeing_votes() -> None:
    mu, means = torch.eye(3), torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 1.0, 2.0]])
    features = torch.tensor([[2.0, 0, 0], [0, 3.0, 0], [0, 1.0, 0.9], [0, 0, 5.0]])  # the third: 1 in mu, 2 in means
    close(agreeing_votes(features, mu, means), [[1, 2, 1], [1, 1, 2], [1, 1, 1]])


def rule_by_hand(pi: np.ndarray, trust: float, partial: bool) -> tuple[float, np.ndarray]:
    """l and pi~, as METHOD.md has them."""
    p = trust * pi + (1 - trust) / len(pi)
    spread = np.exp(-(p * np.log(p)).sum()) / len(pi)
    narrow = 1.0 if partial else min(1.0, max(0.0, (0.70 - spread) / 0.15))
    u = np.minimum(1, 1.5 * p / (p**2).sum()) ** narrow
    u = np.maximum(u, 1e-3 * u.mean())
    return narrow, u / u.sum()


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("trust", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("pi", "expected"),  # of l, in full trust and not declared
    [
        ((0.25, 0.25, 0.25, 0.25), 0.0),
        ((0.4, 0.3, 0.2, 0.1), 0.0),
        ((0.6, 0.3, 0.05, 0.05), 0.282),
        ((0.9, 0.0998, 1e-4, 1e-4), 1.0),
    ],
)
def test_rule(pi: tuple[float, ...], expected: float, trust: float, partial: bool) -> None:
    prior = PriorRule(partial=partial)(wide(*pi), wide(trust).squeeze())
    narrow, capped = rule_by_hand(np.array(pi), trust, partial)
    if trust == 1 and not partial:
        assert narrow == pytest.approx(expected, abs=0.005)
    close(prior.log_pi, np.log(capped))
    close(prior.exponent, (1 - narrow) / 2)
    close(prior.power, 1 + 3 * narrow)
    close(prior.log_pi.exp().sum(), 1)


def test_plain_is_the_paper_s() -> None:
    pi = wide(0.6, 0.3, 0.05, 0.05)
    for partial in (False, True):
        given = PriorRule(trusted=False, partial=partial)(pi, wide(0.3).squeeze())
        for ours, theirs in zip(given, R.paper_prior(pi), strict=True):
            assert torch.equal(ours, theirs)


def test_half_precision_is_computed_in_float32() -> None:
    assert PriorRule()(wide(0.6, 0.3, 0.05, 0.05).half(), torch.ones(())).log_pi.dtype == torch.float32


def test_the_floor_bites() -> None:
    pi = simplex(1, 1, 1e-6, 1e-6, 1e-6, 1e-6)
    found = PriorRule()(pi, torch.ones(()).double()).log_pi.exp()
    close(found[2:] / found[0], np.full(4, 1e-3 * (2 + 4 * 3e-6) / 6), 1e-8)  # of the mean before the floor


def test_a_class_within_reach_counts_in_full() -> None:
    found = PriorRule(partial=True)(simplex(45, 30, 25, 0.1), torch.ones(()).double()).log_pi.exp()
    close(found[:3] / found[0], np.ones(3))
    assert found[3] < 0.01 * found[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 7, 31, 65, 126, 345])
def test_a_uniform_p_is_log_one_over_c_to_the_bit(classes: int, dtype: torch.dtype) -> None:
    """No trust, or a uniform pi: the paper's step of a uniform prior."""
    uniform = torch.full((classes,), 1 / classes, dtype=dtype)
    skewed = torch.arange(1, classes + 1, dtype=dtype)
    for pi, trust in ((uniform, 1), (uniform, 0), (skewed / skewed.sum(), 0)):
        found = PriorRule()(pi, torch.tensor(trust, dtype=dtype))
        assert torch.equal(found.log_pi, uniform.log())
        assert [x.item() for x in found[1:]] == [0.5, 1]


# --- the prior of a module -----------------------------------------------------------------------


def started(**values: Any) -> fastget.GeT:
    """With two labellers that agree on most images."""
    centres = random(C, D, seed=1).float()
    y = torch.arange(80) % C
    f = centres[y] + 0.3 * random(80, D).float()
    get = fastget.GeT(C, D, **values)
    get.initialise(f, y, centres, source_means=centres)
    assert get.trust == 1
    return get


def assert_follows(get: fastget.GeT) -> None:
    """`prior` is the rule's, of pi and trust as they are."""
    expected = get.rule(get.pi, get.trust)
    for found, wanted in zip(get.prior, expected, strict=True):
        assert torch.equal(found, wanted.to(found))
        assert (found.dtype, found.device) == (get.pi.dtype, get.pi.device)


SKEWED = torch.tensor([0.94, 0.04, 0.01, 0.01])


def by_state(get: fastget.GeT) -> fastget.GeT:
    other = fastget.GeT(C, D)
    assert torch.equal(other.prior.log_pi, torch.full((C,), 1 / C).log())  # made before it is loaded
    other.load_state_dict({**get.state_dict(), "pi": SKEWED})
    return other


def by_file(get: fastget.GeT) -> fastget.GeT:
    get.pi.copy_(SKEWED)
    buffer = io.BytesIO()
    torch.save(get, buffer)
    found: fastget.GeT = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    return found


def by_hand_of(get: fastget.GeT, change: Callable[[fastget.GeT], object]) -> fastget.GeT:
    change(get)
    return get


CHANGES: dict[str, Callable[[fastget.GeT], fastget.GeT]] = {
    "pi in place": lambda get: by_hand_of(get, lambda g: g.pi.copy_(SKEWED)),
    "pi's entry": lambda get: by_hand_of(get, lambda g: g.pi.__setitem__(0, 5.0)),
    "another pi": lambda get: by_hand_of(get, lambda g: setattr(g, "pi", SKEWED.clone())),
    "trust": lambda get: by_hand_of(by_state(get), lambda g: g.trust.fill_(0.9)),
    "load_state_dict": by_state,
    "double": lambda get: by_state(get).double(),
    "to": lambda get: by_state(get).to("cpu", torch.float64),
    "half": lambda get: by_state(get).half(),
    "deepcopy": lambda get: copy.deepcopy(by_state(get)),
    "pickle": lambda get: pickle.loads(pickle.dumps(by_state(get))),
    "torch.save": by_file,
    "start": lambda get: by_hand_of(by_state(get), lambda g: g.initialise(
        torch.eye(C, D), torch.arange(C), torch.eye(C, D), torch.eye(C, D))),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_the_prior_follows(name: str) -> None:
    get = started()
    before = get.prior.log_pi.clone()
    changed = CHANGES[name](get)
    assert_follows(changed)
    assert name == "start" or not torch.equal(changed.prior.log_pi.to(before), before)
    changed.pi.copy_(torch.tensor([0.5, 0.48, 0.01, 0.01]))  # and again, where a copy might look at what it is of
    assert_follows(changed)
    f, W = torch.randn(5, D, dtype=changed.pi.dtype), torch.randn(C, D, dtype=changed.pi.dtype)
    out = changed(f, W, labels=torch.zeros(5, dtype=torch.int64))
    log_pi = changed.rule(changed.pi, changed.trust).log_pi
    torch.testing.assert_close(out.expectation.S_g, R.logits(R.cosine(f, W), log_pi, 0.15), rtol=1e-5, atol=1e-5)
    changed.update(f, out)
    assert_follows(changed)


def test_a_copy_leaves_the_other_alone() -> None:
    get = started()
    other = copy.deepcopy(get)
    other.pi.copy_(SKEWED)
    assert_follows(other)
    assert_follows(get)
    assert not torch.equal(other.prior.log_pi, get.prior.log_pi)


@pytest.mark.parametrize("setting", ["uda", "pda", "ssda"])
@pytest.mark.parametrize("partial", ["auto", "yes", "no"])
def test_partial_follows_the_setting(setting: str, partial: Any) -> None:
    get = GetMethod(Get(partial=partial), Task(C, D, 40, setting)).get
    assert get.rule == PriorRule(partial=partial == "yes" or (partial == "auto" and setting == "pda"))


def test_partial_in_python() -> None:
    for given, known in ((True, True), (False, False), ("yes", True), ("no", False), ("auto", False)):
        get = fastget.GeT(C, D, partial=given)
        assert get.rule.partial is known
        assert get.prior[2] == (4 if known else 1)  # Q is P^4, whatever pi is
    assert fastget.GeT(C, D, partial=True).config.partial == "yes"
    assert fastget.GeT(C, D, prior="plain", partial=True).prior[2] == 1


# --- whole runs of steps -------------------------------------------------------------------------


def run(get: fastget.GeT, f: Tensor, means: Tensor, steps: int = 24) -> list[Tensor]:
    """All that a few steps show: losses, y_M, gradients, mu."""
    W = random(C, D, seed=5).to(f)
    get.initialise(f, (f @ W.to(f).T).argmax(1), W, source_means=means)
    shown = [get.mu.clone()]
    for k in range(steps):
        if k % 8 == 0:
            get.start_epoch()
        batch = f[torch.randperm(len(f), generator=torch.Generator().manual_seed(k))[:16]].clone().requires_grad_()
        weight = W.clone().requires_grad_()
        out = get(batch, weight, labels=(batch @ weight.T).argmax(1).detach())
        slopes = torch.autograd.grad(out.loss, (batch, weight, get.mu_f))
        shown += [*(x.detach() for x in out[:6]), *slopes]
        with torch.no_grad():
            W -= 0.1 * slopes[1]
            get.mu_f.sub_(0.1 * slopes[2])
        get.update(batch.detach(), out)
        shown.append(get.mu.clone())
    return shown


def by_chance() -> tuple[Tensor, Tensor]:
    """Features, and source means that have nothing to do with the target's prototypes."""
    f = random(400, D).float()
    return f, random(C, D, seed=9).float()


def one_class() -> tuple[Tensor, Tensor]:
    """Every feature is nearest to the first of each: both labellers put everything into one class."""
    f = 0.05 * random(400, D).float()
    f[:, 0] += 3
    means = -torch.eye(C, D)
    means[0, 0] = 1
    return f, means


@pytest.mark.parametrize("invented", [by_chance, one_class])
def test_without_trust_a_run_is_the_plain_one_of_a_uniform_prior(invented: Callable[[], tuple[Tensor, Tensor]]) -> None:
    f, means = invented()
    get = fastget.GeT(C, D)
    found = run(get, f, means)
    assert get.trust == 0
    assert get.agreement[1] < 0.1
    plain = fastget.GeT(C, D, prior="plain", prior_start="uniform", gamma_pi=0)
    expected = run(plain, f, means)
    assert len(found) == len(expected) > 20 * 10
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    assert not torch.equal(get.pi, plain.pi)  # it goes on by (3*), and nobody asks for it


def test_labellers_that_agree_on_all_are_trusted() -> None:
    centres = 3 * random(C, D, seed=1).float()
    f = centres[torch.arange(200) % 2] + 0.05 * random(200, D).float()  # two of the four classes
    get = fastget.GeT(C, D)
    get.initialise(f, torch.arange(200) % 2, centres, source_means=centres)
    assert get.trust == 1
    assert get.agreement.tolist() == [1, 1]
    torch.testing.assert_close(get.pi, torch.tensor([0.5, 0.5, COUNT_FLOOR, COUNT_FLOOR]) / (1 + 2 * COUNT_FLOOR))
    assert [x.item() for x in get.prior[1:]] == [0, 4]  # l is 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features(dtype: torch.dtype) -> None:
    """The votes and the step of half types are those of the same numbers in float32."""
    centres = random(C, D, seed=1).float()
    f = (centres[torch.arange(80) % 3] + 0.4 * random(80, D).float()).to(dtype)
    both = [fastget.GeT(C, D) for _ in range(2)]
    for get, given in zip(both, (f, f.float()), strict=True):
        get.initialise(given, torch.arange(80) % 3, centres, source_means=centres)
        out = get(given[:16], centres, labels=torch.arange(16) % 3)
        get.update(given[:16], out)
        assert {t.dtype for t in (get.pi, get.mu, get.trust, *get.prior, out.loss)} == {torch.float32}
    for name in ("pi", "trust", "agreement", "mu"):
        assert torch.equal(*(getattr(get, name) for get in both)), name
    assert torch.equal(both[0].prior.log_pi, both[1].prior.log_pi)
