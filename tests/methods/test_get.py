"""GeT as a module: its memory by hand, its start, its options, and what it refuses."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastget
from fastget import reference as R
from fastget.methods.settings import Get

C, D = 4, 6


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


PLAIN = {**Get.presets["0.1"], "on_cpu": "fused"}  # pi as Eq. (3) prints it: no source means; computed as by default


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


@pytest.mark.parametrize(
    ("estimate", "start"), [("likelihood", "estimate"), ("nearest", "estimate"), ("nearest", "agreement")]
)
def test_start_in_chunks_is_the_start_at_once(estimate: Any, start: Any) -> None:
    f, predicted, W, means = random(50, D), torch.arange(50) % C, random(C, D, seed=1), random(C, D, seed=2)
    whole, lists, calls = (fastget.GeT(C, D, prior_estimate=estimate, prior_start=start) for _ in range(3))
    whole.initialise(f, predicted, W, means)
    lists.initialise(f.split(7), predicted.split(7), W, means)
    for chunk, p in zip(f.split(20), predicted.split(20), strict=True):
        calls.initialise(chunk, p, W, means)
    for other in (lists, calls):
        assert torch.equal(whole.mu, other.mu)
        torch.testing.assert_close(whole.pi, other.pi)
    votes = R.agreeing_votes(f, whole.mu, means)
    expected = R.nearest_histogram(f, whole.mu).clamp_min(1e-4)
    if start == "agreement":
        expected = (votes / votes.sum()).clamp_min(1e-4)
        expected = expected / expected.sum()
    torch.testing.assert_close(whole.pi, torch.full((C,), 1 / C) if estimate == "likelihood" else expected)


def test_a_class_without_a_vote_keeps_the_floor_and_pi_sums_to_one() -> None:
    for estimate in ("likelihood", "nearest"):
        get, mu = fastget.GeT(3, 3, prior_estimate=estimate), torch.eye(3)
        get.initialise(mu[:2], torch.arange(2), mu, source_means=mu)
        torch.testing.assert_close(get.pi, torch.tensor([0.5, 0.5, 1e-4]) / 1.0001)


def test_no_image_agrees() -> None:
    """Then nothing is known: 1/C."""
    get, mu = fastget.GeT(2, 2), torch.eye(2)
    get.initialise(mu, torch.arange(2), mu, source_means=mu.flip(0))
    assert get.pi.tolist() == [0.5, 0.5]


def test_the_start_by_agreement_needs_the_source_means() -> None:
    get, f, W = fastget.GeT(C, D), random(8, D), random(C, D)
    y = torch.zeros(8, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"needs the source's class means: pass source_means=\(C, D\)"):
        get.initialise(f, y, W)
    with pytest.raises(
        ValueError, match=r"source_means must be floating point, shape \(4, 6\).*got torch.float32 \(3, 6\)"
    ):
        get.initialise(f, y, W, random(3, D))
    bad = random(C, D)
    bad[2] = torch.nan
    with pytest.raises(ValueError, match=r"not finite in classes \[2\]: a class without a source image"):
        get.initialise(f, y, W, bad)


def test_an_absent_class_loses_its_prior() -> None:
    """A Gaussian mixture in which the target lacks classes, and the source does not. Its images' share is nearly found,
    an absent class has under a tenth of its fair share; with all classes the posterior's prior stays uniform."""
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
        if len(present) == classes:
            assert (R.cap_prior(get.pi) * classes - 1).abs().max() < 0.02
            torch.testing.assert_close(get.prior, torch.full((classes,), 1 / classes))  # by the gate of (2")


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


def test_state_dict_and_dtype_moves() -> None:
    get = started()
    assert set(get.state_dict()) == {"pi", "mu", "health", "mu_f"}
    assert [name for name, _ in get.named_parameters()] == ["mu_f"]
    other = fastget.GeT(C, D)
    other.load_state_dict(get.state_dict())
    f, W, labels = random(5, D), random(C, D, seed=1), torch.zeros(5, dtype=torch.int64)
    assert torch.equal(get(f, W, labels).loss, other(f, W, labels).loss)


@pytest.mark.parametrize(
    ("options", "gamma_g", "gamma_f"),
    [
        ({}, 0.5, 0.5),
        ({"kl_g": False, "kl_f": False}, 1.0, 1.0),
        ({"kl_f": False}, 0.5, 1.0),
        ({"mix": False}, 0.0, 0.0),
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
        torch.testing.assert_close(loss, R.soft_cross_entropy(f, prototypes, get.pi.log(), get.tau, labels))


def test_recipe_paper() -> None:
    get = fastget.GeT(C, D, **fastget.RECIPES["paper"])
    assert (get.tau, get.gamma_mu, get.gamma_Q, get.prototype_labels) == (1.0, 0.9, 0.2, "y_M")


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


# --- what it refuses -----------------------------------------------------------------------------


def test_nan_features_are_refused_with_the_step_and_the_rows() -> None:
    get = started()
    f, W = random(5, D), random(C, D, seed=1)
    get.update(f, get(f, W, labels=torch.zeros(5, dtype=torch.int64)))
    mu = get.mu.clone()
    f[3, 1] = torch.nan
    with pytest.raises(ValueError, match=r"step 1: rows \[3\]"):
        get(f, W)
    assert torch.equal(get.mu, mu)


def test_nan_features_that_reach_the_memory_are_refused_there() -> None:
    """On a GPU nothing waits for the device: the update itself refuses, and check() names the step."""
    get = started()
    mu, pi, f = get.mu.clone(), get.pi.clone(), random(5, D)
    f[0, 0] = torch.inf
    e = R.expectation(f, get.mu, random(C, D), get.mu_f, get.pi, get.tau, labels=torch.zeros(5, dtype=torch.int64))
    for _ in range(2):
        R.update_memory_(get.mu, get.pi, get.health, e, 0.1, 0.1)
    assert torch.equal(get.mu, mu)
    assert torch.equal(get.pi, pi)
    assert get.health.tolist() == [2, 0]
    with pytest.raises(ValueError, match="non-finite features or prototypes in step 0"):
        get.check()
    started().check()


@pytest.mark.parametrize(
    ("features", "weight", "message"),
    [
        ((5, D + 1), (C, D), rf"shape \(batch, {D}\), got \(5, {D + 1}\)"),
        ((5, D, 1), (C, D), "features must have shape"),
        ((0, D), (C, D), "no row"),
        ((5, D), (C + 1, D), rf"weight must have shape \({C}, {D}\).*got \({C + 1}, {D}\)"),
    ],
)
def test_wrong_shapes(features: tuple[int, ...], weight: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        started()(torch.zeros(features), torch.zeros(weight))


def test_wrong_labels_and_types() -> None:
    get = started()
    f, W = random(5, D), random(C, D)
    with pytest.raises(ValueError, match="floating point"):
        get(torch.zeros(5, D, dtype=torch.int64), W)
    with pytest.raises(ValueError, match=rf"lie in \[0, {C - 1}\], got 0 to {C}"):
        get(f, W, labels=torch.tensor([0, 1, 2, 3, C]))
    with pytest.raises(ValueError, match="5 integer classes"):
        get(f, W, labels=torch.zeros(5))
    with pytest.raises(ValueError, match=r"needs the classifier's labels: pass labels=logits.argmax\(1\)"):
        get(f, W)
    out = get(f, W, labels=torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match="got 4 features, the forward call had 5"):
        get.update(f[:4], out)
    with pytest.raises(ValueError, match="1 chunks of features and 2"):
        get.initialise([f], [f, f], W)
    with pytest.raises(ValueError, match="at least one target feature"):
        fastget.GeT(C, D, **PLAIN).initialise([], [], W)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 1}, "num_classes must be a whole number of at least 2"),
        ({"feature_dim": 0}, "feature_dim"),
        ({"tau": 0}, "tau must be above 0, got 0"),
        ({"gamma_mu": 1.5}, "gamma_mu must be at least 0 and at most 1"),
        ({"prior_estimate": "mean"}, "prior_estimate must be"),
        ({"prototype_labels": "x"}, "prototype_labels must be"),
        ({"mix": False, "kl_f": False}, "mix=False"),
        ({"prior_shrinkage": True, "prior_cap": True}, "prior_shrinkage and prior_cap each"),
        ({"backend": "cuda"}, "backend must be"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fastget.GeT(**{"num_classes": C, "feature_dim": D, **options})


def test_use_before_initialise_warns_once() -> None:
    get = fastget.GeT(C, D, prototype_labels="y_M")
    with pytest.warns(RuntimeWarning, match="before initialise"):
        get(random(3, D), random(C, D))
    get(random(3, D), random(C, D))  # warnings are errors in these tests


def test_repr_names_the_options() -> None:
    assert "tau=0.15" in repr(fastget.GeT(C, D))


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_nan_in_the_prototypes_does_not_reach_the_memory(backend: Any) -> None:
    get = started(backend=backend)
    mu, pi, f, W = get.mu.clone(), get.pi.clone(), random(5, D), random(C, D, seed=1)
    W[1, 2] = torch.nan
    get.update(f, get(f, W, labels=torch.zeros(5, dtype=torch.int64)))
    assert torch.equal(get.mu, mu)
    assert torch.equal(get.pi, pi)
    with pytest.raises(ValueError, match="step 0 of GeT"):
        get.check()
    get.initialise(random(40, D), torch.arange(40) % C, random(C, D))
    get.check()  # a new start


def test_the_memory_stays_float32() -> None:
    get = started()
    before = get.mu.clone()
    for moved in (get.half(), get.to(torch.bfloat16), get.to("cpu")):
        assert {t.dtype for t in (moved.mu, moved.pi, moved.mu_f)} == {torch.float32}
        assert torch.equal(moved.mu, before)


def test_numpy_numbers_are_numbers() -> None:
    import numpy as np

    get = fastget.GeT(np.int64(C), np.int64(D), tau=np.float32(0.25), gamma_mu=np.float64(0.5))
    assert (get.num_classes, get.tau) == (C, 0.25)
    with pytest.raises(ValueError, match="tau must be"):
        fastget.GeT(C, D, tau=True)
