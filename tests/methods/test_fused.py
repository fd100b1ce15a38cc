"""The CPU's fused path against the reference: in float64 to rounding, in float32 by the kernels' own gates."""

from __future__ import annotations

import inspect
import itertools
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import fastget
from fastget import reference
from fastget.methods.backend import choose_backend
from fastget.methods.get import fused
from tests.kernels.support import (
    SHAPES,
    Batch,
    batch,
    check_gradients,
    check_loss,
    check_P,
    error,
    gradients,
    rebalanced,
    relative,
    step_inputs,
)

ESTIMATES = ("likelihood", "posterior", "nearest")
FORMS: list[dict[str, bool]] = [
    {},
    {"prior_shrinkage": True},
    {"prior_cap": True},
    {"prior_cap": True, "prior_gate": True},
    {"prior_cap": True, "prior_gate": True, "rebalance_gate": True},
]
OPTIONS = [{"prior_estimate": estimate, **form} for estimate, form in itertools.product(ESTIMATES, FORMS)]


def test_the_names_and_signatures_are_the_references() -> None:
    assert fused.__all__ == reference.__all__
    for name in ("expectation", "objective", "update_memory_"):
        mine, theirs = (inspect.signature(getattr(module, name)) for module in (fused, reference))
        assert list(mine.parameters) == list(theirs.parameters), name
        for one, other in zip(mine.parameters.values(), theirs.parameters.values(), strict=True):
            assert (one.default, one.kind) == (other.default, other.kind), name
    assert fused.Expectation._fields[:-1] == reference.Expectation._fields


def test_who_is_taken() -> None:
    cpu = torch.device("cpu")
    assert choose_backend("auto", cpu) is fused
    assert choose_backend("auto", cpu, "reference") is reference
    assert choose_backend("reference", cpu) is reference
    assert choose_backend("auto", torch.device("meta")) is reference


def whole(ops: Any, x: Batch, tau: float, gammas: tuple[float, float], **options: Any) -> dict[str, Tensor]:
    """Everything that a step makes: statistics, labels, losses, gradients, memory."""
    x = x.leaves("features", "mu_g", "mu_f")
    mu, pi, health = x.mu.clone(), x.pi.clone(), torch.tensor([3, -1])
    e = ops.expectation(x.features, mu, x.mu_g, x.mu_f, pi, tau, **options)
    out = ops.objective(e, *gammas)
    (2 * out.loss - out.loss_g + 0.5 * out.loss_f).backward()
    made = {"S_g": e.S_g, "S_f": e.S_f, "y_M": e.y_M, "statistics": e.statistics, **out._asdict()}
    made |= {f"d_{name}": getattr(x, name).grad for name in ("features", "mu_g", "mu_f")}
    if e.sums is not None:
        ops.update_memory_(mu, pi, health, e, 0.2, 0.1, floor=1e-4)
    return {name: value.detach() for name, value in {**made, "mu": mu, "pi": pi, "health": health}.items()}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_float64_agrees_to_rounding_in_every_option(options: dict[str, Any]) -> None:
    for shape, gammas in itertools.product([(5, 3, 7), (18, 33, 20)], [(0.5, 0.5), (1.0, 0.5), (0.0, 0.0)]):
        x = batch(*shape).to(torch.float64)
        for by in ({}, {"use_y_M": True}, {"labels": x.labels}):
            expected = whole(reference, x, 0.15, gammas, **options, **by)
            found = whole(fused, x, 0.15, gammas, **options, **by)
            assert type(fused.expectation(*step_inputs(x), 0.15, **options)) is fused.Expectation
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-11, msg=f"{name} {gammas} {by}")


@pytest.mark.parametrize("present", [33, 27, 20], ids=["in full", "faded", "off"])
def test_a_prior_that_spreads_and_others(present: int) -> None:
    """On both sides of the gates of (2") and (6'), each alone and both."""
    pi = torch.full((33,), 1e-4)
    pi[:present] = 1 + 0.1 * torch.rand(present, generator=torch.Generator().manual_seed(0))
    x = replace(batch(18, 33, 20), pi=pi / pi.sum()).to(torch.float64)
    forms: list[dict[str, Any]] = [{"prior_cap": True, "prior_gate": True}, {"rebalance_gate": True}]
    for options in (*forms, {**forms[0], **forms[1]}, {"prior_shrinkage": True, "rebalance_gate": True}):
        expected, found = (whole(ops, x, 0.15, (0.5, 0.2), labels=x.labels, **options) for ops in (reference, fused))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-11, msg=f"{name} {options}")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tau", [1.0, 0.15, 0.01])
def test_float32_by_the_kernels_gates(shape: tuple[int, int, int], tau: float) -> None:
    x = batch(*shape)
    exact = x.to(torch.float64)
    forms: list[dict[str, Any]] = [{}, {"prior_estimate": "nearest", "prior_cap": True}]
    for options in forms:
        made = [ops.expectation(*step_inputs(y), tau, **options) for ops, y in
                ((fused, x), (reference, x), (reference, exact))]  # fmt: skip
        posteriors = [(torch.softmax(e.S_g, 1), torch.softmax(e.S_f, 1), *rebalanced(e)) for e in made]
        for P, torchs_P, exact_P in zip(*posteriors, strict=True):
            check_P(P, torchs_P, exact_P, tau)
        assert torch.equal(made[0].y_M, made[2].y_M)
        (out, found), (plain, torchs), (wanted, expected) = (
            gradients(ops, y, tau, weights=(3.0, 0.5, 0.0), **options)
            for ops, y in ((fused, x), (reference, x), (reference, exact))
        )
        for name in out._fields:
            loss, torchs_loss, exact_loss = (getattr(one, name).detach() for one in (out, plain, wanted))
            size = max(1.0, abs(float(exact_loss)))
            if tau < 0.1:  # a cosine's rounding, 2^-24, over tau
                assert error(loss, exact_loss) <= error(torchs_loss, exact_loss) + 2**-24 / tau * size, name
            else:
                check_loss(loss, torchs_loss, exact_loss, name)
        if shape[2] > 1:
            check_gradients(found, torchs, expected, tau)
        else:  # a cosine is 1 or -1 there: no slope, but for rounding
            assert max(error(d, wanted) for d, wanted in zip(found, expected, strict=True)) < 1e-6 / tau


def odd(name: str) -> Batch:
    """Batches at the edge of the ordinary, and beyond it."""
    x = batch(9, 5, 6)
    f, mu, mu_g, pi = x.features.clone(), x.mu.clone(), x.mu_g.clone(), x.pi.clone()
    if name == "zero vectors":
        f[1], mu[2], mu_g[0] = 0, 0, 0
    elif name == "short vectors":
        f[1], mu_g[0] = 1e-20, 1e-15
    elif name == "long vectors":
        f[1], mu_g[0] = f[1] * 1e15, mu_g[0] * 1e17
    elif name == "overflowing norm":
        f[1] = 3e38
    elif name == "prior of zero":
        pi[0] = 0
    elif name == "one class":
        f = mu_g[:1].expand(9, -1) + 1e-4 * f  # all mass in one column: others underflow at a small tau
    return replace(x, features=f, mu=mu, mu_g=mu_g, pi=pi)


@pytest.mark.parametrize(
    "name", ["zero vectors", "short vectors", "long vectors", "overflowing norm", "prior of zero", "one class"]
)
@pytest.mark.parametrize("tau", [0.15, 0.005])
def test_extremes(name: str, tau: float) -> None:
    x = odd(name)
    expected, found = (whole(ops, x, tau, (0.5, 0.5), labels=x.labels) for ops in (reference, fused))
    assert torch.equal(found["y_M"], expected["y_M"])
    for key, value in expected.items():
        rtol, atol = 1e-4 if tau == 0.15 else 3e-3, 1e-5 * max(1.0, float(value.abs().nan_to_num(0, 0, 0).max()))
        if key.startswith("structure") and not bool(torch.isfinite(value)):
            continue  # the reference's KL is infinite where P underflows and Q does not
        torch.testing.assert_close(found[key], value, rtol=rtol, atol=atol, equal_nan=True, msg=key)


def test_half_types_and_mixed_ones() -> None:
    x = batch(7, 5, 6)
    half = replace(x, features=x.features.bfloat16(), mu_g=x.mu_g.bfloat16())
    expected, found = (whole(ops, half, 0.15, (0.5, 0.5), labels=x.labels) for ops in (reference, fused))
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        torch.testing.assert_close(found[name].double(), value.double(), rtol=1e-2 if "d_" in name else 1e-5, atol=1e-5)


def test_a_class_that_nobody_has_is_left_to_the_bit() -> None:
    x = batch(6, 5, 4)
    labels, mu, pi, health = torch.tensor([0, 0, 1, 1, 3, 3]), x.mu.clone(), x.pi.clone(), torch.tensor([0, -1])
    e = fused.expectation(*step_inputs(x), 0.15, labels=labels)
    fused.update_memory_(mu, pi, health, e, 0.3, 0.1)
    assert torch.equal(mu[[2, 4]], x.mu[[2, 4]])
    assert not torch.equal(mu[[0, 1, 3]], x.mu[[0, 1, 3]])


@pytest.mark.parametrize("bad", ["features", "mu_g", "mu", "another rank", "skip"])
def test_what_leaves_the_memory_alone(bad: str) -> None:
    x = batch(6, 5, 4)
    if bad in ("features", "mu_g", "mu"):
        getattr(x, bad)[1, 2] = torch.nan
    mu, pi, health = x.mu.clone(), x.pi.clone(), torch.tensor([4, -1])
    e = fused.expectation(*step_inputs(x), 0.15, labels=x.labels)
    if bad == "another rank":
        e.bad_rows.fill_(1)  # as an all-reduce of the statistics brings it
        assert float(e.statistics[3 * 5 + 1]) == 1
    fused.objective(e, 0.5, 0.5)
    skip = torch.tensor(1.0) if bad == "skip" else None
    fused.update_memory_(mu, pi, health, e, 0.3, 0.1, skip=skip)
    kept = bad != "mu"  # y_M alone depends on it: the reference takes such a batch too
    assert torch.equal(pi, x.pi) == kept
    if kept:
        assert torch.equal(mu, x.mu)
    assert health.tolist() == [5, -1 if bad in ("skip", "mu") else 4]


def test_two_forwards_before_a_backward_and_a_second_backward() -> None:
    """Nothing that a later step makes is where an earlier one's gradient looks."""
    one, other = batch(8, 5, 6).leaves("features", "mu_g", "mu_f"), batch(8, 5, 6, seed=1).leaves("features")
    _, alone = gradients(fused, one, 0.15, weights=(1.0, 0.0, 0.0))
    first = fused.objective(fused.expectation(*step_inputs(one), 0.15), 0.5, 0.5)
    second = fused.objective(fused.expectation(*step_inputs(other), 0.15), 0.5, 0.5)
    wanted = (one.features, one.mu_g, one.mu_f)
    for _ in range(2):
        found = torch.autograd.grad(first.loss, wanted, retain_graph=True)
        for d, expected in zip(found, alone, strict=True):
            assert torch.equal(d, expected)
    second.loss.backward()
    assert other.features.grad is not None


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    x = batch(8, 5, 6)
    _, all_of_them = gradients(fused, x, 0.15)
    for i, name in enumerate(("features", "mu_g", "mu_f")):
        _, found = gradients(fused, x, 0.15, needs=(name,))
        assert torch.equal(found[0], all_of_them[i])
    assert not fused.objective(fused.expectation(*step_inputs(x), 0.15), 0.5, 0.5).loss.requires_grad


def test_fewer_operators() -> None:
    """Counted: what is not a product costs by its number at small shapes."""
    from fastget.kernels.audit.traffic import CountOperators

    counts = {}
    for ops in (reference, fused):
        x = batch(6, 5, 4).leaves("features", "mu_g", "mu_f")
        with CountOperators() as counter:
            e = ops.expectation(*step_inputs(x), 0.15, labels=x.labels)
            ops.objective(e, 0.5, 0.5).loss.backward()
            ops.update_memory_(x.mu, x.pi, torch.tensor([0, -1]), e, 0.1, 0.1)
        counts[ops] = counter.names
    assert sum(name in ("mm", "addmm") for name in counts[fused]) == 3
    assert len(counts[fused]) < 0.6 * len(counts[reference])


def test_get_follows_the_reference_in_training() -> None:
    from tests.kernels.test_step import toy

    (expected, memory), (found, mine) = toy("reference"), toy("auto")
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-4
    for name in ("mu", "pi", "mu_f"):
        assert relative(getattr(mine, name).detach(), getattr(memory, name).detach()) < 1e-4, name


def test_a_wrong_expectation_and_a_wrong_estimate_are_refused() -> None:
    x = batch(3, 2, 2)
    with pytest.raises(ValueError, match="of the same backend"):
        fused.objective(object(), 0.5, 0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prior_estimate must be"):
        fused.expectation(*step_inputs(x), 0.15, prior_estimate="mean")
    with pytest.raises(ValueError, match="needs class sums"):
        fused.update_memory_(x.mu, x.pi, torch.tensor([0, -1]), fused.expectation(*step_inputs(x), 0.15), 0.1, 0.1)


def test_an_older_run_goes_on_with_the_reference() -> None:
    """Its configuration has no get.on_cpu: what it did then is the reference."""
    from fastget.config import make_config
    from tests.runs.test_old_runs import OLD

    assert make_config(file=OLD / "config.yaml").own.on_cpu == "reference"
    assert make_config().own.on_cpu == "fused"
    with patch.object(fused, "expectation", side_effect=AssertionError("the fused path")):
        get = fastget.GeT(3, 2, prototype_labels="y_M", on_cpu="reference", prior_start="estimate")
        get.initialise(torch.eye(3, 2), torch.arange(3), torch.ones(3, 2))
        get(torch.eye(3, 2), torch.ones(3, 2))
