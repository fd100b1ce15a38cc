"""A whole step: how many launches, how many bytes, nothing else on the device, and GeT as a module on the kernels."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastget import GeT, kernels, reference
from fastget.common.choices import Backend
from fastget.kernels.audit import traffic
from fastget.kernels.audit.step import StepInputs
from fastget.kernels.launch import Launch, record
from tests.kernels.checker import assert_order_free
from tests.kernels.support import (
    GRADIENT_TOLERANCE,
    LOSS_TOLERANCE,
    P_TOLERANCE,
    batch,
    error,
    gradients,
    nan_filled,
    relative,
    step_inputs,
)

LAUNCHES = [
    "logits_kernel",
    "statistics_kernel",
    "objective_kernel",
    "totals_kernel",
    "backward_kernel",
    "memory_kernel",
]


def dry_step(B: int, C: int, D: int, dtype: torch.dtype, **options: Any) -> tuple[list[Launch], list[str]]:
    """The launches of one step on tensors without memory, and the other operators that PyTorch would run."""

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    x = StepInputs.make(make, B, C, D, dtype)
    with traffic.CountOperators() as counter, record(dry=True) as launches:
        e = kernels.expectation(x.features, x.mu, x.mu_g, x.mu_f, x.pi, 0.15, labels=x.labels, **options)
        kernels.objective(e, 0.5, 0.5).loss.backward()
        kernels.update_memory_(x.mu, x.pi, x.health, e, 0.01, 0.01)
    return launches, [name for name in counter.names if name != "ones_like"]  # the 1 that backward() starts from


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_six_launches_and_no_other_work(dtype: torch.dtype) -> None:
    forms: list[dict[str, bool]] = [{}, {"prior_shrinkage": True}, {"prior_cap": True}]
    forms += [{"prior_cap": True, "prior_gate": True}, {"rebalance_gate": True}]
    forms.append({"prior_cap": True, "prior_gate": True, "rebalance_gate": True})
    for estimate, form in itertools.product(("likelihood", "posterior", "nearest"), forms):
        launches, others = dry_step(36, 65, 256, dtype, prior_estimate=estimate, **form)
        assert [launch.name for launch in launches] == LAUNCHES
        assert others == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", traffic.SIZES, ids=str)
def test_bytes(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    B, C, D = size
    launches, _ = dry_step(B, C, D, dtype)
    least = traffic.minimum_bytes(B, C, D, dtype)
    ratio = sum(launch.bytes for launch in launches) / least
    assert 1.0 <= ratio <= 1.7, f"{ratio:.3f} times the least"  # the slopes, written once: 1.61 where B C is largest


def test_bytes_are_of_what_is_touched() -> None:
    """`reads` and `writes` are not a wish: every tensor argument of a launch stands in them, unless switched off."""
    x = batch(6, 5, 4).leaves("features", "mu_g", "mu_f")
    with record() as launches:
        e = kernels.expectation(*step_inputs(x), 0.15, labels=x.labels)
        kernels.objective(e, 0.5, 0.5).loss.backward()
        kernels.update_memory_(x.mu, x.pi, torch.tensor([0, -1]), e, 0.1, 0.1)
    for launch in launches:
        named = {t.data_ptr() for t in (*launch.reads, *launch.writes)}
        passed = {t.data_ptr() for t in launch.args if isinstance(t, Tensor)}
        assert passed == named, launch.name


@pytest.mark.slow
def test_five_thousand_classes() -> None:
    x = batch(2, 5000, 3)
    with nan_filled():
        e = kernels.expectation(*step_inputs(x), 0.15, prior_estimate="nearest")
        out, found = gradients(kernels, x, 0.15)
    exact = x.to(torch.float64)
    r = reference.expectation(*step_inputs(exact), 0.15, prior_estimate="nearest")
    assert error(torch.softmax(e.S_g, 1), torch.softmax(r.S_g, 1)) < P_TOLERANCE
    assert torch.equal(e.y_M, r.y_M)
    assert error(e.statistics, r.statistics) < 2e-6
    wanted, expected = gradients(reference, exact, 0.15)
    assert error(out.loss.detach(), wanted.loss.detach()) <= LOSS_TOLERANCE * float(wanted.loss.detach())
    for d, slope in zip(found, expected, strict=True):
        assert relative(d, slope) < GRADIENT_TOLERANCE


def toy(backend: Backend, steps: int = 20, **options: Any) -> tuple[list[float], GeT]:
    """A small network trained with GeT's target term: its losses, and the memory that it leaves."""
    torch.manual_seed(1)
    centres = 3 * torch.randn(5, 12)
    network, head = nn.Linear(12, 8), nn.Linear(8, 5)
    get = GeT(5, 8, backend=backend, gamma_mu=0.1, gamma_pi=0.1, **options)
    draw = torch.Generator().manual_seed(2)
    target = centres[torch.randint(0, 5, (40,), generator=draw)] + torch.randn(40, 12, generator=draw)
    with torch.no_grad():
        features = network(target)
        get.initialise(features, head(features).argmax(1), head.weight, source_means=network(centres))
    get.start_epoch()
    optimizer = torch.optim.SGD([*network.parameters(), *head.parameters(), get.mu_f], lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        features = network(target[torch.randperm(40, generator=draw)[:18]])
        out = get(features, head.weight, labels=head(features).argmax(1))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        get.update(features.detach(), out)
        losses.append(float(out.loss.detach()))
    return losses, get


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="default"),
        pytest.param(
            {"prior_cap": False, "prior_shrinkage": True, "prototype_labels": "y_M"},
            id="shrunk-y_M",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_get_follows_the_reference(options: dict[str, Any]) -> None:
    expected, reference_memory = toy("reference", **options)
    found, memory = toy("triton", **options)
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-4
    assert min(expected) < 0.8 * expected[0], "the toy problem is learnt"
    for name in ("mu", "pi", "mu_f"):
        assert float((getattr(memory, name) - getattr(reference_memory, name)).detach().abs().max()) < 1e-4, name
    assert torch.equal(memory.health, reference_memory.health)


def test_a_step_gives_the_same_bits_in_any_order() -> None:
    def run() -> tuple[Tensor, ...]:
        x = batch(19, 35, 20).leaves("features", "mu_g", "mu_f")
        e = kernels.expectation(*step_inputs(x), 0.15, labels=x.labels)
        out = kernels.objective(e, 0.5, 0.5)
        out.loss.backward()
        kernels.update_memory_(x.mu, x.pi, torch.tensor([0, -1]), e, 0.1, 0.1)
        grads = [t.grad for t in (x.features, x.mu_g, x.mu_f)]
        return (*(t.detach() for t in out), *(g for g in grads if g is not None), x.mu, x.pi)

    assert_order_free(run, seeds=(1,))
