"""Prototypes copied to bfloat16 first, as large sizes have it, forced at small ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from fastget import kernels, reference
from fastget.kernels import configs
from fastget.kernels.launch import record
from fastget.kernels.step import Steps
from tests.kernels.checker import assert_order_free, check_addresses
from tests.kernels.support import Batch, batch, error, gradients, half_rule, nan_filled, relative, step_inputs

BF16 = torch.bfloat16
# One row; less than a tile; more than one tile of rows, classes and width, none of them full.
SHAPES = [(1, 8, 16), (37, 40, 48), (131, 72, 272)]


@pytest.fixture(autouse=True)
def _copied() -> Iterator[None]:
    with configs.forced_copies(True):
        yield


def narrow(x: Batch) -> Batch:
    """bfloat16 features beside float32 prototypes, as a network has them under autocast."""
    return replace(x, features=x.features.to(BF16))


@pytest.mark.parametrize("estimate", ["likelihood", "posterior", "nearest"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_expectation_is_that_of_the_smaller_tiles(shape: tuple[int, int, int], estimate: str) -> None:
    """Both round in the same places: what differs is the order of the sums."""
    x = narrow(batch(*shape))
    forms = {"prior_cap": True, "rebalance_gate": True}
    options: dict[str, Any] = {"prior_estimate": estimate, "labels": x.labels, **forms}
    with nan_filled(), record() as launches:
        found = kernels.expectation(*step_inputs(x), 0.15, **options)
    with configs.forced_copies(False):
        plain = kernels.expectation(*step_inputs(x), 0.15, **options)
    assert [launch.name for launch in launches] == ["copies_kernel", "copied_logits_kernel", "statistics_kernel"]
    assert torch.equal(found.y_M, plain.y_M)
    for name in ("S_g", "S_f", "colsum_g", "colsum_f", "prior_sum", "exponent", "sums"):
        assert relative(getattr(found, name), getattr(plain, name)) < 2e-6, name
    assert found.scales.copies is not None
    assert plain.scales.copies is None
    assert torch.equal(found.scales.copies, torch.stack([x.mu, x.mu_g, x.mu_f]).to(BF16)), "rounded to the nearest"
    for mine, other in zip(found.scales[:4], plain.scales[:4], strict=True):
        assert mine is not None
        assert other is not None
        assert relative(mine, other) < 1e-6


@pytest.mark.parametrize("shape", [(13, 24, 48), (37, 72, 144)], ids=str)
def test_against_float32_it_errs_no_more_than_pytorch_at_that_type(shape: tuple[int, int, int]) -> None:
    x = batch(*shape)
    for tau in (0.05, 0.15):
        half_rule(lambda ops, x, tau=tau: gradients(ops, x, tau)[1], x, BF16)  # type: ignore[misc]
    half_rule(lambda ops, x: [gradients(ops, x, 0.15)[0].loss.detach()], x, BF16, tolerance=1e-5)


@pytest.mark.parametrize(
    "weights", [(3.0, 0.0, 0.0), pytest.param((0.0, 2.0, 0.0), marks=pytest.mark.slow), (1.0, -0.4, 0.7)], ids=str
)
def test_gradients_are_those_of_the_smaller_tiles(weights: tuple[float, float, float]) -> None:
    x = narrow(batch(261, 16, 32) if weights[0] == 3 else batch(37, 72, 144))  # more than one of the largest tiles
    needs = ("features", "mu_g") if weights[0] == 0 else ("features", "mu_g", "mu_f")
    with nan_filled():
        out, found = gradients(kernels, x, 0.15, weights=weights, needs=needs)
    exact, wanted = gradients(reference, x.to(torch.float64), 0.15, weights=weights, needs=needs)
    with configs.forced_copies(False):
        _, plain = gradients(kernels, x, 0.15, weights=weights, needs=needs)
    assert error(out.loss.detach(), exact.loss.detach()) < 2e-3
    for mine, other, right in zip(found, plain, wanted, strict=True):
        assert relative(mine, right) <= relative(other, right) + 5e-4, "as without copies, but for a rounding"


def test_extremes() -> None:
    x = batch(9, 16, 32)
    x.features[2] = 0
    x.mu_g[4] = 0
    x.mu_f[1] = 1e-14
    x = narrow(replace(x, features=x.features * 1e4))
    _, found = gradients(kernels, x, 0.15)
    assert float(found[0][2].abs().max()) == float(found[1][4].abs().max()) == float(found[2][1].abs().max()) == 0
    assert all(bool(d.isfinite().all()) for d in found)
    for where in ("features", "mu_g", "mu_f"):
        bad = narrow(batch(9, 16, 32))
        getattr(bad, where)[4, 3] = float("nan")
        _, found = gradients(kernels, bad, 0.15)
        _, expected = gradients(reference, bad, 0.15)
        for d, wanted in zip(found, expected, strict=True):
            assert torch.equal(d.isnan(), wanted.isnan())
    bad = narrow(batch(9, 16, 32))
    bad.features[4, 3] = float("inf")
    e = kernels.expectation(*step_inputs(bad), 0.15)
    assert (float(e.bad_rows), float(e.rows)) == (1, 9)


def test_addresses_and_order() -> None:
    x = narrow(batch(37, 72, 144)).leaves("features", "mu_g", "mu_f")
    with check_addresses():
        out = kernels.objective(kernels.expectation(*step_inputs(x), 0.15, labels=x.labels), 0.5, 0.5)
        (out.loss + out.loss_g).backward()
    small = narrow(batch(19, 24, 32))

    def run() -> tuple[Any, ...]:
        return tuple(gradients(kernels, small, 0.15)[1])

    assert_order_free(run, seeds=(1,))


def test_what_has_no_copies() -> None:
    """Rows that do not begin at 16 bytes, other types, features that are not contiguous, small cards."""

    def names(x: Batch) -> list[str]:
        with record() as launches:
            kernels.expectation(*step_inputs(x), 0.15)
        return [launch.name for launch in launches]

    plain = ["logits_kernel", "statistics_kernel"]
    assert names(narrow(batch(5, 8, 16))) != plain
    assert names(narrow(batch(5, 9, 16))) == names(narrow(batch(5, 8, 24))) == names(batch(5, 8, 16)) == plain
    x = narrow(batch(5, 8, 16))
    assert names(replace(x, features=x.features.T.contiguous().T)) == plain
    with configs.forced_room(False):
        assert names(x) == plain
    with configs.forced_copies(False):
        assert names(x) == plain


def test_a_workspace_repeats_the_seven_launches() -> None:
    """The second step's bits are those of the functions, and nothing is copied once for all."""
    steps = Steps(direct=False)
    for seed in (0, 1, 2):
        x = narrow(batch(5, 8, 16, seed=seed)).leaves("features", "mu_g", "mu_f")
        _, expected = gradients(kernels, x, 0.15, weights=(1.0, 0.0, 0.0))
        numbers = (0.15, "likelihood", False, False, False, False, False, 0.5, 0.5)
        with record() as launches:
            held = steps.expectation(*step_inputs(x), x.labels, *numbers, check=lambda: None, always=False)
            steps.objective(held).loss.backward()
            steps.update(x.mu, x.pi, torch.tensor([0, -1]), held, 0.1, 0.1, 1e-8, None)
        assert len(launches) == 7
        for name, wanted in zip(("features", "mu_g", "mu_f"), expected, strict=True):
            assert torch.equal(getattr(x, name).grad, wanted)


def test_compiled_graphs_know_the_copies() -> None:
    x = narrow(batch(5, 8, 16))

    def run(features: torch.Tensor, mu_g: torch.Tensor) -> torch.Tensor:
        e = kernels.expectation(features, x.mu, mu_g, x.mu_f, x.pi, 0.2)
        return kernels.objective(e, 0.5, 0.5).loss

    plain, traced = x.leaves("features", "mu_g"), x.leaves("features", "mu_g")
    run(plain.features, plain.mu_g).backward()
    torch.compile(run, fullgraph=True, backend="aot_eager")(traced.features, traced.mu_g).backward()
    assert plain.features.grad is not None
    assert traced.features.grad is not None
    assert torch.equal(plain.features.grad, traced.features.grad)
