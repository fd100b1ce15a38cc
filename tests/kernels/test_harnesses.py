"""What counts, times and vouches for the kernels runs the step that a user's GeT takes: the same launches, of the same
arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fastget
from benchmarks.common import Case
from fastget.kernels.audit import model, traffic
from fastget.kernels.audit.step import launches_of
from fastget.kernels.launch import Launch, record
from fastget.selftest.kernels import forward_backward, make_inputs

SHAPE = (9, 5, 20)
RECIPES = ["default", "paper"]
Signature = list[tuple[str, list[Any], dict[str, Any]]]


def signature(launches: list[Launch]) -> Signature:
    """Of each launch its name, its arguments (a tensor by shape, stride and type) and its configuration."""

    def said(value: Any) -> Any:
        return (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, Tensor) else value

    return [(x.name, [said(a) for a in x.args], {**x.constexprs, "num_warps": x.num_warps}) for x in launches]


def of_a_user(recipe: str) -> Signature:
    """As README has it: GeT from the package, started, and in its second step."""
    (B, C, D), recipes = SHAPE, {"default": {}, "paper": fastget.RECIPES["paper"]}
    get = fastget.GeT(C, D, backend="triton", **recipes[recipe])
    features, weight = torch.randn(B, D), torch.randn(C, D)
    with record(dry=True) as launches:
        get.initialise(features, torch.arange(B) % C, weight, torch.randn(C, D))
        for _ in range(2):
            launches.clear()
            out = get(features.requires_grad_(), weight.requires_grad_(), labels=torch.zeros(B, dtype=torch.int64))
            out.loss.backward()
            get.update(features.detach(), out)
    return signature(launches)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_audit_and_the_model_take_a_users_step(recipe: str) -> None:
    wanted = of_a_user(recipe)
    assert len(wanted) == 6
    assert signature(launches_of(*SHAPE, recipe=recipe)) == wanted
    names = [name for name, *_ in wanted]
    assert list(traffic.fused_step(*SHAPE, recipe=recipe).names) == names
    modelled = model.step_times(*SHAPE, torch.float32, model.CARDS["H100"], recipe)
    assert [f"{x.work.name}_kernel" for x in modelled] == names


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_self_test_takes_a_users_step(recipe: str) -> None:
    x = make_inputs(*SHAPE, "cpu", recipe=recipe)
    with record(dry=True) as launches:
        assert x.get.prior
        launches.clear()
        forward_backward(x)
    assert signature(launches) == of_a_user(recipe)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the benchmarks take bfloat16 there")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_phase_is_benchmarked_on_a_users_arguments(recipe: str) -> None:
    wanted = {name: rest for name, *rest in of_a_user(recipe)}
    case = Case(SHAPE, "triton", recipe)
    calls = case.calls()
    for phase, kernels in {
        "expectation": ["logits_kernel", "statistics_kernel"],
        "objective": ["objective_kernel", "totals_kernel"],
        "update_memory_": ["memory_kernel"],
    }.items():
        with record(dry=True) as launches:
            case.phase(phase)(calls[phase])
        assert [launch.name for launch in launches] == kernels
        for name, *rest in signature(launches):
            assert rest == wanted[name], name


def test_another_setting_is_seen() -> None:
    assert signature(launches_of(*SHAPE, prior="plain")) != of_a_user("default")
    assert signature(launches_of(*SHAPE, tau=0.2)) != of_a_user("default")
