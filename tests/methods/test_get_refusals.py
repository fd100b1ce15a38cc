"""What GeT refuses, in words: arguments, tensors, options that are gone, numbers that are not finite."""

from typing import Any

import pytest
import torch

import fastget
from fastget import reference as R
from tests.methods.test_get import PLAIN, C, D, random, started


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
    e = R.expectation(f, get.mu, random(C, D), get.mu_f, get.pi.log(), get.tau)
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
        ((5, D + 1), (C, D), rf"shape \(batch of at least 1, {D}\).* got torch.float32 of shape \(5, {D + 1}\)"),
        ((5, D, 1), (C, D), "features must be .* of shape"),
        ((0, D), (C, D), rf"at least 1, .* of shape \(0, {D}\)"),
        ((5, D), (C + 1, D), rf"weight must be .* of shape \({C}, {D}\).*got .*\({C + 1}, {D}\)"),
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
    with pytest.raises(ValueError, match=r"got features \[4, 6\], the forward call had \[5, 6\]"):
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
        ({"prior": "capped"}, "prior must be one of plain, trusted, got 'capped'"),
        ({"partial": "maybe"}, "partial must be one of auto, yes, no"),
        ({"prior_cap": True}, r"get\.prior_cap is gone: get\.prior=trusted .*, get\.prior=plain takes"),
        ({"on_cpu": "fused"}, r"get\.on_cpu is gone: .* leave it out"),
        ({"prior_start": "estimate"}, r"get\.prior_start=estimate is gone: choose get\.prior_start=uniform"),
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


def test_numpy_numbers_are_numbers() -> None:
    import numpy as np

    get = fastget.GeT(np.int64(C), np.int64(D), tau=np.float32(0.25), gamma_mu=np.float64(0.5))
    assert (get.num_classes, get.tau) == (C, 0.25)
    with pytest.raises(ValueError, match="tau must be"):
        fastget.GeT(C, D, tau=True)
