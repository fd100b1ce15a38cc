"""CUDA graphs, which spare the host, shown on this card before they are taken.

What holds is kept in the user's cache (fastget.common.proven), and from then on train.graph=auto takes graphs here.
What fails is kept too: the ordinary way stays.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fastget.common.proven import keep
from fastget.selftest.engine import engine, steps
from fastget.selftest.table import Check, Machine, Row, cannot, passed_if
from fastget.training.engine import Engine
from fastget.training.graph import StaticSteps, captured
from fastget.training.optim import fill_momentum

PART = "host"
STEPS = 30


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


CHECKS: list[Check] = [graph]
