"""The logits launch by itself: which heads it makes, what it leaves for the phases after it."""

from __future__ import annotations

import torch

from fastget import reference
from fastget.kernels.logits import LOG_PRIOR, SLOT_ESTIMATE, SLOT_G, SLOT_MU, launch_logits
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
    top, total = logits.parts[SLOT_G], logits.parts[SLOT_G + 1]
    assert logits.S_g is not None
    whole = top.amax(0) + (total * (top - top.amax(0)).exp()).sum(0).log()
    assert error(whole, torch.logsumexp(logits.S_g.double(), 1)) < 2e-6
    likelihood = logits.parts[SLOT_ESTIMATE] + logits.parts[SLOT_ESTIMATE + 1].log()
    cos = reference.cosine(x.features.double(), x.mu_g.double()) / 0.2
    assert error(torch.logsumexp(likelihood, 0), torch.logsumexp(cos, 1)) < 2e-6
    best, column = logits.parts[SLOT_MU], logits.parts[SLOT_MU + 1]
    chosen = column.gather(0, best.argmax(0, keepdim=True))[0].long()
    scores = x.pi.double().log() + reference.cosine(x.features.double(), x.mu.double()) / 0.2
    assert torch.equal(chosen, scores.argmax(1))


def test_heads_that_are_left_out_are_not_made() -> None:
    x = batch(5, 6, 7)
    logits = launch_logits(x.features, x.pi.log(), 0.2, mu_g=x.mu_g, prior_kind=LOG_PRIOR)
    assert logits.S_f is None
    assert logits.S_g is not None
    expected = x.pi.double().log() + reference.cosine(x.features.double(), x.mu_g.double()) / 0.2
    assert error(logits.S_g, expected) < 2e-6
