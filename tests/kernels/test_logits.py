"""The logits launch by itself: which heads it makes, what it leaves for the phases after it."""

from __future__ import annotations

import pytest
import torch

from fastget import reference
from fastget.kernels import configs
from fastget.kernels.launch import record
from fastget.kernels.logits import LOG_PRIOR, NO_PRIOR, SLOT_ESTIMATE, SLOT_G, SLOT_MU, launch_logits
from fastget.kernels.tile import BROKEN, UNITS
from tests.kernels.support import batch, error, nan_filled


def test_scales_are_log_prior_and_norms() -> None:
    B, C, D = 21, 40, 35
    x = batch(B, C, D)
    with nan_filled():
        logits = launch_logits(x.features, x.pi, 0.2, mu=x.mu, mu_g=x.mu_g, mu_f=x.mu_f, shrink=True)
    log_prior, norm, norm_g, norm_f = torch.split(logits.scales, [C, B, C, C])
    assert error(log_prior, reference.shrink_prior(x.pi.double()).log()) < 2e-6
    for found, vectors in ((norm, x.features), (norm_g, x.mu_g), (norm_f, x.mu_f)):
        assert error(found, vectors.double().norm(dim=1)) < 2e-6


def test_partials_make_the_whole_softmax_and_argmax() -> None:
    x = batch(19, 70, 12)
    with nan_filled():
        logits = launch_logits(x.features, x.pi, 0.2, mu=x.mu, mu_g=x.mu_g, mu_f=x.mu_f, estimate=1)
    assert logits.tiles > 1
    largest, top, total = logits.parts[SLOT_G : SLOT_G + 3].double()
    largest = largest / UNITS.value / 0.2
    cos = reference.cosine(x.features.double(), x.mu_g.double()) / 0.2
    assert error(largest.amax(0), cos.amax(1)) < 1e-6
    whole = torch.logsumexp(largest + top + total.log(), 0)
    assert error(whole, torch.logsumexp(x.pi.double().log() + cos, 1)) < 1e-6
    likelihood = largest + logits.parts[SLOT_ESTIMATE].double() + logits.parts[SLOT_ESTIMATE + 1].double().log()
    assert error(torch.logsumexp(likelihood, 0), torch.logsumexp(cos, 1)) < 1e-6
    best, column = logits.parts[SLOT_MU], logits.parts[SLOT_MU + 1]
    chosen = column.gather(0, best.argmax(0, keepdim=True))[0].long()
    scores = x.pi.double().log() + reference.cosine(x.features.double(), x.mu.double()) / 0.2
    assert torch.equal(chosen, scores.argmax(1))


def test_heads_that_are_left_out_are_not_made() -> None:
    x = batch(5, 6, 7)
    logits = launch_logits(x.features, x.pi.log(), 0.2, mu_g=x.mu_g, prior_kind=LOG_PRIOR)
    assert logits.cos_f is None
    assert logits.cos_g is not None
    assert (
        error(logits.cos_g.double() / UNITS.value, reference.cosine(x.features.double(), x.mu_g.double())) <= 2.0**-29
    )


@pytest.mark.parametrize("shape", [(37, 67, 33), (5, 3, 2), (4, 3, 300)], ids=str)
def test_float32_cosines_are_right_to_the_last_unit(shape: tuple[int, int, int]) -> None:
    """2^-29, where a product of float32 is off by some 2^-23: at tau 0.01 P would show it."""
    x = batch(*shape)
    base = x.mu[0]  # vectors that all point nearly one way, the worst case
    features, mu_g = base + 0.1 * x.features, base + 0.1 * x.mu_g
    found = launch_logits(features, x.pi.log(), 0.01, mu_g=mu_g, prior_kind=LOG_PRIOR).cos_g
    assert found is not None
    exact = reference.cosine(features.double(), mu_g.double())
    assert error(found.double() / UNITS.value, exact) <= 2.0**-29
    assert error(reference.cosine(features, mu_g), exact) > 2.0**-26, "a test that float32 passes shows nothing"


def test_a_cosine_that_is_no_number_is_marked() -> None:
    x = batch(3, 4, 5)
    x.features[1, 2] = float("nan")
    found = launch_logits(x.features, x.pi.log(), 0.2, mu_g=x.mu_g, prior_kind=LOG_PRIOR).cos_g
    assert found is not None
    assert (found == BROKEN.value).tolist() == [[False] * 4, [True] * 4, [False] * 4]


def test_float64_sums_are_for_float32_at_its_highest() -> None:
    x = batch(3, 4, 5)
    assert configs.wide(x.features, x.mu)
    assert not configs.wide(x.features.half(), x.mu)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert not configs.wide(x.features, x.mu)
    finally:
        torch.set_float32_matmul_precision(before)


def test_programs_stand_in_one_row() -> None:
    """The second axis of a CUDA grid ends at 65,535."""
    with record(dry=True) as launches:
        launch_logits(
            torch.empty(3_000_000, 4, device="meta"),
            None,
            1.0,
            mu=torch.empty(70, 4, device="meta"),
            prior_kind=NO_PRIOR,
        )
    assert launches[0].grid == (93_750 * 3,)
