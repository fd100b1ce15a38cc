"""The ways that spare the host, shown on this card before they are taken: bound launches and CUDA graphs.

What holds is kept in the user's cache (fastget.common.shown), and from then on GeT launches its kernels directly here,
and train.graph=auto takes graphs. What fails is kept too: the ordinary way stays.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fastget.common.shown import keep
from fastget.methods.get.module import GeT
from fastget.selftest.engine import engine, steps
from fastget.selftest.kernels import kernels_and_traffic, make_inputs
from fastget.selftest.table import Check, Machine, Row, cannot, passed_if
from fastget.training.engine import Engine
from fastget.training.graph import StaticSteps, captured
from fastget.training.optim import fill_momentum

PART = "host"
SHAPE = (36, 65, 256)
STEPS = 30


def bound_launches(machine: Machine) -> Iterator[Row]:
    """GeT's steps with the compiled kernels' own launchers called directly, against Triton's way: the same bits."""
    name = "bound launches"
    if not machine.gpu:
        yield cannot(PART, name)
        return
    kernels_and_traffic()
    from fastget.kernels.step import Steps

    results = []
    for direct in (False, True):
        get = _get(machine.device)
        get._steps, get._place = Steps(direct), (get.backend, get.on_cpu, machine.device)
        results.append([tensor for n in range(5) for tensor in _step(get, n, machine.device)])
    same = all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    keep({"bound launches": same}, machine.device)
    yield passed_if(PART, name, same, f"5 steps, {'bit-identical: taken from now on' if same else 'results differ'}")


def _get(device: torch.device) -> GeT:
    B, C, D = SHAPE
    x = make_inputs(B, C, D, device)
    get = GeT(C, D, backend="triton", prior_start="estimate", check_now=False).to(device)
    get.initialise(x.features.detach(), x.labels, x.mu_g.detach())
    return get


def _step(get: GeT, number: int, device: torch.device) -> list[Tensor]:
    """Losses, gradients and the memory after a step on a batch of its own."""
    B, C, D = SHAPE
    x = make_inputs(B, C, D, device)
    features = (x.features.detach() + 0.01 * number).requires_grad_()
    out = get(features, x.mu_g, labels=x.labels)
    grads = torch.autograd.grad(out.loss, (features, x.mu_g, get.mu_f))
    get.update(features.detach(), out)
    return [out.loss.detach(), out.structure_g, out.y_M, *grads, get.mu.clone(), get.pi.clone()]


def graph(machine: Machine) -> Iterator[Row]:
    """A run through warm-up, the method's start and epochs, its steps replayed as CUDA graphs, against the same static
    steps run one by one: the same bits."""
    name = f"{STEPS} steps as CUDA graphs"
    if not machine.gpu:
        yield cannot(PART, name)
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        eager, replayed = (engine(machine, train__precision="auto") for _ in range(2))
        if eager.dtype == torch.float16:
            yield cannot(PART, name, "this card runs float16, whose loss scaler decides on the host")
            return
        for one, capture in ((eager, lambda step: step), (replayed, captured)):
            one.graph = StaticSteps(one.learn, one.optimizer, machine.device, one.meter, capture)
            fill_momentum(one.optimizer)
        losses = [steps(one, STEPS) for one in (eager, replayed)]
    finally:
        torch.use_deterministic_algorithms(False)
    same = losses[0] == losses[1] and _same_state(eager, replayed)
    keep({"graph": same}, machine.device)
    apart = max(abs(a - b) for a, b in zip(*losses, strict=True))
    good = "bit-identical: train.graph=auto takes them from now on"
    yield passed_if(PART, name, same, good if same else f"differ: losses by up to {apart:.2g}")


def _same_state(a: Engine, b: Engine) -> bool:
    one, other = a.model.state_dict(), b.model.state_dict()
    return all(torch.equal(one[key], other[key]) for key in one)


CHECKS: list[Check] = [bound_launches, graph]
