"""GeT as a module: its memory by hand, its start, its options."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastget
from fastget import reference as R
from fastget.methods.get.prior import agreeing_votes, start_of

C, D = 4, 6


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


PLAIN: dict[str, Any] = {
    "prior_start": "uniform",
    "prior_estimate": "likelihood",
    "prior": "plain",
}  # the paper's: no source means


def started(**options: Any) -> fastget.GeT:
    get = fastget.GeT(num_classes=C, feature_dim=D, **{**PLAIN, **options})
    get.initialise(random(40, D), torch.arange(40) % C, random(C, D, seed=1))
    return get


def test_the_documented_loop() -> None:
    classifier = nn.Linear(D, C)
    get = fastget.GeT(num_classes=C, feature_dim=D)
    get.initialise(random(40, D), torch.arange(40) % C, classifier.weight, source_means=random(C, D, seed=2))
    get.start_epoch()
    features = random(9, D).requires_grad_()
    logits = classifier(features)
    out = get(features, classifier.weight, labels=logits.argmax(1))
    (logits.logsumexp(1).mean() + out.loss).backward()
    get.update(features.detach(), out)
    for grad in (features.grad, classifier.weight.grad, get.mu_f.grad):
        assert grad is not None
        assert grad.abs().sum() > 0
    assert torch.equal(out.loss, out.loss_g + out.loss_f)
    assert out.y_M.dtype == torch.int64
    assert not out.structure_g.requires_grad


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_memory_after_k_updates_by_hand(dtype: torch.dtype, within: float) -> None:
    gamma_mu, gamma_pi, tau = 0.2, 0.1, 0.3
    get = started(gamma_mu=gamma_mu, gamma_pi=gamma_pi, tau=tau).to(dtype)
    before = get.mu.clone()
    mu, pi = get.mu.to(torch.float64, copy=True), get.pi.to(torch.float64, copy=True)
    W = random(C, D, seed=1).to(dtype)
    for k in range(5):
        f = random(8, D, seed=10 + k).to(dtype)
        labels = torch.tensor([0, 0, 1, 1, 1, 0, 2, 2])  # class 3 never comes
        get.update(f, get(f, W, labels=labels))
        cos = nn.functional.cosine_similarity(f.double()[:, None], W.double()[None], dim=2)
        pi = (1 - gamma_pi) * pi + gamma_pi * torch.softmax(cos / tau, 1).mean(0)
        pi = pi / pi.sum()
        for c in range(3):
            mu[c] = (1 - gamma_mu) * mu[c] + gamma_mu * f[labels == c].double().mean(0)
    torch.testing.assert_close(get.mu.double(), mu, rtol=0, atol=within)
    torch.testing.assert_close(get.pi.double(), pi, rtol=0, atol=within)
    assert torch.equal(get.mu[3], before[3])  # to the bit
    assert get.health.tolist() == [5, -1]


def test_prototype_labels_y_M_moves_the_classes_of_y_M() -> None:
    get = started(prototype_labels="y_M", gamma_mu=0.5)
    before, f, W = get.mu.clone(), random(7, D, seed=3), random(C, D, seed=1)
    out = get(f, W, labels=torch.zeros(7, dtype=torch.int64))  # not asked for
    get.update(f, out)
    torch.testing.assert_close(get.mu, R.update_prototypes(before, *R.class_sums(f, out.y_M, C), 0.5))


def test_start_of_mu() -> None:
    get = fastget.GeT(C, D)
    f, predicted, W = random(20, D), torch.arange(20) % 3, random(C, D, seed=1)
    get.initialise(f, predicted, W, random(C, D, seed=2))
    for c in range(3):
        torch.testing.assert_close(get.mu[c], f[predicted == c].mean(0))
    torch.testing.assert_close(get.mu[3], W[3] / W[3].norm() * f.norm(dim=1).mean())
    assert torch.equal(get.mu_f, get.mu)


@pytest.mark.parametrize("start", ["uniform", "agreement"])
@pytest.mark.parametrize("prior", ["plain", "trusted"])
def test_start_in_chunks_is_the_start_at_once(start: Any, prior: Any) -> None:
    f, predicted, W, means = random(50, D), torch.arange(50) % C, random(C, D, seed=1), random(C, D, seed=2)
    whole, lists, calls = (fastget.GeT(C, D, prior_start=start, prior=prior) for _ in range(3))
    whole.initialise(f, predicted, W, means)
    lists.initialise(f.split(7), predicted.split(7), W, means)
    for chunk, p in zip(f.split(20), predicted.split(20), strict=True):
        calls.initialise(chunk, p, W, means)
    for other in (lists, calls):
        for name in ("mu", "pi", "trust", "agreement"):
            assert torch.equal(getattr(whole, name), getattr(other, name)), name
    pi, trust, agreement = start_of(agreeing_votes(f, whole.mu, means))
    looked = (start, prior) != ("uniform", "plain")
    assert torch.equal(whole.pi, pi) if start == "agreement" else (whole.pi == 1 / C).all()
    assert whole.trust == (trust if looked else 1)
    assert whole.agreement.tolist() == (agreement.tolist() if looked else [-1, -1])


def test_a_class_without_a_vote_keeps_the_floor_and_pi_sums_to_one() -> None:
    get, mu = fastget.GeT(3, 3), torch.eye(3)
    get.initialise(mu[:2], torch.arange(2), mu, source_means=mu)
    torch.testing.assert_close(get.pi, torch.tensor([0.5, 0.5, 1e-4]) / 1.0001)


def test_no_image_agrees() -> None:
    """Then nothing is known: 1/C, and no trust."""
    get, mu = fastget.GeT(2, 2), torch.eye(2)
    get.initialise(mu, torch.arange(2), mu, source_means=mu.flip(0))
    assert get.pi.tolist() == [0.5, 0.5]
    assert get.trust == 0
    assert get.agreement.tolist() == [0, -1]


def test_two_labellers_need_the_source_means() -> None:
    f, W = random(8, D), random(C, D)
    y = torch.zeros(8, dtype=torch.int64)
    values: list[dict[str, Any]] = [{}, {"prior_start": "uniform"}, {"prior": "plain"}]
    for given in values:
        get = fastget.GeT(C, D, **given)
        with pytest.raises(ValueError, match=r"need the source's class means: pass source_means=\(C, D\)"):
            get.initialise(f, y, W)
    fastget.GeT(C, D, prior_start="uniform", prior="plain").initialise(f, y, W)
    with pytest.raises(ValueError, match=r"source_means must be .* of shape \(4, 6\) .*got torch.float32 .*\(3, 6\)"):
        get.initialise(f, y, W, random(3, D))
    bad = random(C, D)
    bad[2] = torch.nan
    with pytest.raises(ValueError, match=r"not finite in classes \[2\]: give zeros to a class"):
        get.initialise(f, y, W, bad)


def test_an_absent_class_loses_its_prior() -> None:
    """A Gaussian mixture in which the target lacks classes, and the source does not. Its images' share is nearly found,
    an absent class has under a tenth of its fair share; with all classes the prior and Eq. (6) are the paper's."""
    classes, width = 12, 16
    draw = torch.Generator().manual_seed(4)
    centres = 3 * torch.randn(classes, width, generator=draw)
    for present in (torch.arange(5), torch.arange(classes)):
        y = present[torch.randint(0, len(present), (600,), generator=draw)]
        f = centres[y] + 0.4 + torch.randn(600, width, generator=draw)  # moved, as another domain is
        get = fastget.GeT(classes, width)
        predicted = (f @ centres.T).argmax(1)
        predicted[torch.randperm(600, generator=draw)[:90]] = torch.randint(
            0, classes, (90,), generator=draw
        )  # wrong ones
        get.initialise(f, predicted, centres, source_means=centres)
        for _ in range(150):
            rows = torch.randint(0, 600, (36,), generator=draw)
            get.update(f[rows], get(f[rows], centres, labels=predicted[rows]))
        truth = torch.bincount(y, minlength=classes) / 600
        assert 0.5 * (get.pi - truth).abs().sum() < 0.1
        absent = torch.ones(classes, dtype=torch.bool)
        absent[present] = False
        assert (get.pi[absent] < 0.1 / classes).all()
        assert get.trust == 1
        narrow = len(present) < classes
        assert [float(power) for power in get.prior[1:]] == ([0, 4] if narrow else [0.5, 1])
        if narrow:
            assert (get.prior.log_pi[absent] < -3 + get.prior.log_pi[present].min()).all()
        else:
            torch.testing.assert_close(get.prior.log_pi, torch.full((classes,), 1 / classes).log())


def test_initialise_after_a_step_starts_anew() -> None:
    get = started()
    get(random(3, D), random(C, D, seed=1), labels=torch.zeros(3, dtype=torch.int64))
    f = random(12, D, seed=5)
    get.initialise(f, torch.arange(12) % C, random(C, D, seed=1))
    torch.testing.assert_close(get.mu[0], f[::C].mean(0))


def test_start_epoch_sets_mu_f() -> None:
    get = started()
    with torch.no_grad():
        get.mu.add_(1)
    get.start_epoch()
    assert torch.equal(get.mu_f, get.mu)


def test_state_dict() -> None:
    get = started()
    assert set(get.state_dict()) == {"pi", "mu", "trust", "agreement", "health", "mu_f"}
    assert [name for name, _ in get.named_parameters()] == ["mu_f"]
    other = fastget.GeT(C, D, **PLAIN)
    other.load_state_dict(get.state_dict())
    f, W, labels = random(5, D), random(C, D, seed=1), torch.zeros(5, dtype=torch.int64)
    assert torch.equal(get(f, W, labels).loss, other(f, W, labels).loss)
    of_0_2 = {name: value for name, value in get.state_dict().items() if name not in ("trust", "agreement")}
    other = fastget.GeT(C, D, **PLAIN)
    other.load_state_dict(of_0_2)
    assert other.trust == 1
    assert other.agreement.tolist() == [-1, -1]
    with pytest.raises(RuntimeError, match="mu_f"):
        other.load_state_dict({name: value for name, value in of_0_2.items() if name != "mu_f"})


@pytest.mark.parametrize(
    ("options", "gamma_g", "gamma_f"),
    [
        ({}, 0.35, 0.35),
        ({"kl_g": False, "kl_f": False}, 1.0, 1.0),
        ({"kl_f": False}, 0.35, 1.0),
        ({"mix": False}, 0.0, 0.0),
        ({"mix": False, "kl_f": False}, 0.0, 1.0),
        ({"gamma_Q": 0.2}, 0.2, 0.2),
    ],
)
def test_ablations_change_the_labels(options: dict[str, Any], gamma_g: float, gamma_f: float) -> None:
    get = started(**options)
    f, W = random(9, D, seed=2), random(C, D, seed=1)
    out = get(f, W, labels=torch.zeros(9, dtype=torch.int64))
    for prototypes, gamma, loss in ((W, gamma_g, out.loss_g), (get.mu_f, gamma_f, out.loss_f)):
        P = R.posterior(f, prototypes, get.pi.log(), get.tau)
        labels = R.mixed_labels(R.rebalance(P), out.y_M, gamma)
        torch.testing.assert_close(loss, R.soft_cross_entropy(P.log(), labels))


def test_recipe_paper() -> None:
    get = fastget.GeT(C, D, **fastget.RECIPES["paper"])
    assert (get.tau, get.gamma_mu, get.gamma_pi, get.gamma_Q) == (1.0, 0.9, 0.01, 0.2)
    get.initialise(random(40, D), torch.arange(40) % C, random(C, D, seed=1))  # no source means, no labels
    get.pi.copy_(torch.tensor([0.97, 0.01, 0.01, 0.01]))
    assert torch.equal(get.prior.log_pi, get.pi.log())
    assert [float(power) for power in get.prior[1:]] == [0.5, 1]
    get.update(f := random(5, D), get(f, random(C, D, seed=1)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_and_autocast(dtype: torch.dtype) -> None:
    get = started()
    f, W = random(9, D, seed=2).to(dtype), random(C, D, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = get(f, W, labels=torch.zeros(9, dtype=torch.int64))
        get.update(f, out)
    torch.testing.assert_close(out.loss, started()(f.float(), W, labels=torch.zeros(9, dtype=torch.int64)).loss)
    assert out.loss.dtype == get.mu.dtype == torch.float32


def test_skip_leaves_the_memory_alone() -> None:
    get = started()
    mu, pi, f = get.mu.clone(), get.pi.clone(), random(5, D)
    out = get(f, random(C, D, seed=1), labels=torch.zeros(5, dtype=torch.int64))
    get.update(f, out, skip=torch.tensor(1.0))
    assert torch.equal(get.mu, mu)
    assert torch.equal(get.pi, pi)
    get.update(f, out, skip=torch.tensor(0.0))
    assert not torch.equal(get.mu, mu)


def test_repr_names_the_options() -> None:
    assert "tau=0.15" in repr(fastget.GeT(C, D))


def test_the_memory_stays_float32() -> None:
    get = started()
    before = get.mu.clone()
    for moved in (get.half(), get.to(torch.bfloat16), get.to("cpu")):
        assert {t.dtype for t in (moved.mu, moved.pi, moved.mu_f, *moved.prior)} == {torch.float32}
        assert torch.equal(moved.mu, before)
