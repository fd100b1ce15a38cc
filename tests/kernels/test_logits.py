"""The logits launch by itself: which heads it makes, what it leaves for the phases after it."""

from __future__ import annotations

import pytest
import torch

from fastget import reference
from fastget.kernels import configs
from fastget.kernels.launch import record
from fastget.kernels.logits import launch_logits
from fastget.kernels.tile import PART_ESTIMATE, PART_G, PART_MU
from tests.kernels.support import batch, error, nan_filled


def test_norms() -> None:
    x = batch(21, 40, 35)
    with nan_filled():
        made = launch_logits(x.features, x.pi.log(), 0.2, mu=x.mu, mu_g=x.mu_g, mu_f=x.mu_f)
    assert made.norm_g is not None
    assert made.norm_f is not None
    for found, vectors in ((made.norm, x.features), (made.norm_g, x.mu_g), (made.norm_f, x.mu_f)):
        assert error(found, vectors.double().norm(dim=1)) < 2e-6


def test_partials_make_the_whole_softmax_and_argmax() -> None:
    x = batch(19, 70, 12)
    with nan_filled():
        logits = launch_logits(x.features, x.pi.log(), 0.2, mu=x.mu, mu_g=x.mu_g, mu_f=x.mu_f, estimate="likelihood")
    assert logits.parts.shape[2] > 1
    cos = reference.cosine(x.features.double(), x.mu_g.double()) / 0.2
    for part, wanted in ((PART_G, x.pi.double().log() + cos), (PART_ESTIMATE, cos)):
        top, total = logits.parts[part.value].double()
        assert error(torch.logsumexp(top + total.log(), 0), torch.logsumexp(wanted, 1)) < 2e-6
    score, best = logits.parts[PART_MU.value]
    chosen = best.gather(0, score.argmax(0, keepdim=True))[0].long()
    scores = x.pi.double().log() + reference.cosine(x.features.double(), x.mu.double()) / 0.2
    assert torch.equal(chosen, scores.argmax(1))


def test_heads_that_are_left_out_are_not_made() -> None:
    x = batch(5, 6, 7)
    logits = launch_logits(x.features, x.pi.log(), 0.2, mu_g=x.mu_g)
    assert logits.S_f is None
    assert logits.norm_f is None
    assert logits.S_g is not None
    cos = reference.cosine(x.features.double(), x.mu_g.double())
    assert error(logits.S_g, x.pi.double().log() + cos / 0.2) < 2e-6


@pytest.mark.parametrize(("asked", "given"), [("highest", "ieee"), ("high", "tf32")])
def test_the_precision_is_what_torch_was_asked_for(asked: str, given: str) -> None:
    x = batch(3, 4, 5)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(asked)
    try:
        assert configs.precision(x.features, x.mu) == given
        assert configs.precision(x.features.half(), x.mu) == "tf32"
        assert configs.precision(x.features.bfloat16(), x.mu) == "bf16"
    finally:
        torch.set_float32_matmul_precision(before)


def test_tf32_is_rounded_to_nearest() -> None:
    """Cut off, cosines would shrink by 7e-4 on average; rounded, nothing does, and an error is 2^-11 at most."""
    x = batch(64, 64, 128)
    with configs.choosing(precision="tf32"):
        S = launch_logits(x.features, None, 1.0, mu_g=x.features[:64] + 0.3 * x.mu_g).S_g
    assert S is not None
    exact = reference.cosine(x.features.double(), x.features[:64].double() + 0.3 * x.mu_g.double())
    own = torch.arange(64)
    off = S[own, own].double() - exact[own, own]
    assert 1e-6 < float(off.abs().max()) < 2.0**-11, "the rounding is seen, and is small"
    assert abs(float(off.mean())) < 3e-5


def test_programs_stand_in_one_row() -> None:
    """The second axis of a CUDA grid ends at 65,535."""
    with record(dry=True) as launches:
        launch_logits(
            torch.empty(3_000_000, 4, device="meta"),
            None,
            1.0,
            mu=torch.empty(70, 4, device="meta"),
        )
    assert launches[0].grid == (93_750 * 3,)
