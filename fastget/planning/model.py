"""How long a step and an image of an evaluation take on a card, by what each has to do, and what a rank keeps there.

Seconds and bytes, of one rank.

An operation of the network takes as long as the larger of its multiplications and its memory traffic, at a share of the
card's peaks that fits published training speeds (docs/plan.md), and never less than a launch; a backward pass costs two
forward ones. A card, its decoder and the host work at the same time: a step takes as long as the slowest of them, and
what of the gradients' exchange does not hide behind the backward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from fastget.bases import base_of
from fastget.bases.base import Call
from fastget.common.timing import UNTIMED
from fastget.config import Config
from fastget.loading.loader import AHEAD
from fastget.networks.flops import Counted
from fastget.networks.network import Network
from fastget.planning.cards import PlanCard
from fastget.planning.counts import method_without_content
from fastget.planning.reading import Reading
from fastget.training.cost import LEARNED, LOOKED_AT, bytes_of
from fastget.training.passes import StepKind

COMPUTE, TRAFFIC = 0.7, 0.7  # shares of a card's peaks: fitted to A100, V100 and T4
LAUNCH = 4e-6  # seconds at least of an operation on a card
HOST_OPERATION = 12e-6  # seconds of the host an operation: 10 to 15 ms for a step of ResNet-50
HOST_STEP = 1.5e-3  # losses, method, optimizer
COLLECTIVE = 20e-6  # seconds at least of an exchange, for every doubling of the ranks
OVERLAP = 0.8  # of the backward pass, behind which gradients are exchanged
BUCKET = 25 * 2**20  # bytes of gradients that DistributedDataParallel exchanges at a time


@dataclass(frozen=True)
class Slower:
    """Measured times over the model's."""

    training: float = 1.0
    looking: float = 1.0
    reading: float = 1.0


AS_MODELLED = Slower()


@dataclass(frozen=True)
class PlanMachine:
    """What a rank runs on."""

    card: PlanCard
    half: bool  # number type of the network
    cores: int  # of the CPU, for each rank
    gpu: bool = True
    threads: int = 0  # that torch takes of a CPU's cores when it is the card
    slower: Slower = AS_MODELLED

    @property
    def flops(self) -> float:
        return COMPUTE * self.card.reach * (self.card.half if self.half else self.card.single)

    @property
    def bandwidth(self) -> float:
        return TRAFFIC * self.card.reach * self.card.bandwidth

    @property
    def bytes(self) -> int:
        return 2 if self.half else 4


class StepTime(NamedTuple):
    """Seconds that each of them needs; the last is what is left of it behind the others."""

    network: float
    decode: float
    host: float
    collectives: float
    shares_cores: bool = False  # the CPU that computes is the one that decodes

    @property
    def seconds(self) -> float:
        if self.shares_cores:
            return self.network + self.decode
        return max(self.network, self.decode, self.host) + self.collectives

    def parts(self) -> dict[str, float]:
        """The step's time by what bounds it."""
        if self.shares_cores:
            return {"network": self.network, "decode": self.decode}
        slowest = max(("network", "decode", "host"), key=lambda name: float(getattr(self, name)))
        return {slowest: self.seconds - self.collectives, "collectives": self.collectives}


def forward_seconds(counted: Counted, images: float, machine: PlanMachine) -> float:
    """Of one call of the network."""
    total = 0.0
    for flops, moved, weights in counted.operations:
        traffic = machine.bytes * (images * moved + weights) / machine.bandwidth
        seconds = max(images * flops / machine.flops, traffic)
        total += max(LAUNCH, seconds) if machine.gpu else seconds + LAUNCH
    return total


def calls_seconds(counted: Counted, calls: tuple[Call, ...], scale: float, machine: PlanMachine) -> float:
    """Forward and backward."""
    return sum(
        (LEARNED if call.learned else LOOKED_AT) * forward_seconds(counted, scale * call.rows, machine)
        for call in calls
    )


class Load(NamedTuple):
    """What a rank has to carry."""

    counted: Counted
    kept: Kept
    reading: Reading
    gathered: float = 0.0  # bytes of images that a rank shows the others in a step, for a base model that mixes them


def step_seconds(load: Load, kind: StepKind, scale: float, machine: PlanMachine, ranks: int) -> StepTime:
    """A step of training, of a batch `scale` times the run's."""
    counted, kept = load.counted, load.kept
    trained = any(call.learned for call in kind.calls)  # else the backbone is frozen
    learned = kept.parameters + (counted.parameters if trained else counted.head_parameters)
    network = calls_seconds(counted, kind.calls, scale, machine)
    backward = network * (1 - LOOKED_AT / LEARNED) if trained else 0.0
    optimizer = kind.parts * 5 * 4 * learned / machine.bandwidth  # parameters and momentum read and written, gradients
    rows = scale * ranks * max(call.rows for call in kind.calls)
    memory = kept.memory / machine.bandwidth + rows * kept.memory / 2 / (COMPUTE * machine.card.single)
    operations = len(counted.operations)
    calls = sum(LEARNED if call.learned else LOOKED_AT for call in kind.calls)
    host = HOST_OPERATION * operations * calls + kind.parts * HOST_STEP
    network = machine.slower.training * (network + optimizer + memory + (0 if machine.gpu else kind.parts * HOST_STEP))
    decode, shares = decode_seconds(scale * kind.shown, load.reading, machine)
    exposed = kind.parts * hidden_rest(exchange(4 * learned, ranks, machine.card), 4 * learned, backward)
    if ranks > 1:
        exposed += exchange(4 * counted.head_parameters, ranks, machine.card)  # a method's statistics
        exposed += load.gathered * (ranks - 1) / (machine.card.wire if ranks > machine.card.node else machine.card.link)
    return StepTime(network, decode, host if machine.gpu else 0.0, exposed, shares)


def looking_seconds(load: Load, batch: int, machine: PlanMachine) -> StepTime:
    """A batch of an evaluation."""
    network = machine.slower.looking * forward_seconds(load.counted, batch, machine)
    decode, shares = decode_seconds(batch, load.reading, machine)
    host = HOST_OPERATION * len(load.counted.operations) if machine.gpu else 0.0
    return StepTime(network, decode, host, 0.0, shares)


def decode_seconds(images: float, reading: Reading, machine: PlanMachine) -> tuple[float, bool]:
    """And whether the cores that decode are those that compute."""
    cpu = machine.slower.reading * images * reading.cpu
    if machine.gpu:
        return max(cpu / machine.cores, images * reading.card), False
    spare = machine.cores - machine.threads
    return (cpu / spare, False) if spare > 0 else (cpu / machine.cores, True)


# --- between ranks -------------------------------------------------------------------------------


def exchange(size: float, ranks: int, card: PlanCard) -> float:
    """An all-reduce of so many bytes: within a node first, then between nodes, every card by its own wire."""
    if ranks == 1:
        return 0.0
    inside, nodes = min(ranks, card.node), math.ceil(ranks / card.node)
    within = 2 * (inside - 1) / inside * size / card.link
    between = 2 * (nodes - 1) / nodes * size / inside / card.wire
    return within + between + COLLECTIVE * math.log2(ranks)


def hidden_rest(seconds: float, size: float, backward: float) -> float:
    """What is left of the gradients' exchange behind the backward pass: at least its last bucket."""
    return max(seconds * min(1.0, BUCKET / size), seconds - OVERLAP * backward) if seconds else 0.0


CONTEXT = {"cuda": 1.1 * 2**30, "cpu": 0.45 * 2**30}  # the driver's, libraries' and their workspaces


@dataclass(frozen=True)
class Kept:
    """What method and base model keep on a rank, beside the network."""

    parameters: int  # that they learn
    memory: int  # bytes of the method


def kept_by(config: Config, classes: int, target: int, ranks: int) -> Kept:
    """Built without content, for a rank's share of the target: memories of every target image are shared."""
    method = method_without_content(config, classes, math.ceil(target / ranks))
    with torch.device("meta"):
        network = Network(nn.Identity(), 1, classes, config.network.bottleneck_dim, norm=False)
        model = base_of(config.method.base)(network, method, 0.0, UNTIMED, config.base)
    learned = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in network.parameters())
    return Kept(learned, bytes_of(method))


def memory_of(config: Config, counted: Counted, kept: Kept, step: StepKind, scale: float, ranks: int, evaluated: int,
              half: bool, device: str) -> dict[str, float]:  # fmt: skip
    """Bytes by what they are for. `scale`: a rank's batch to the whole one; `evaluated`: images of a batch there.
    The images of a step are counted as if all were kept until its end, which is an upper bound for an own step."""
    frozen = config.optim.backbone_lr_scale == 0
    learned = kept.parameters + (counted.head_parameters if frozen else counted.parameters)
    size = 2 if half else 4
    trained, looked = (
        scale * sum(call.rows for call in step.calls if call.learned is wanted) for wanted in (True, False)
    )
    back = trained * (size * counted.saved + counted.saved_bytes) + 2 * size * counted.largest * trained
    forward = 3 * size * counted.largest * max(looked, evaluated)
    return {
        "weights": 4 * (counted.parameters + kept.parameters) + (2 * counted.parameters if half else 0),
        "gradients and momentum": (8 if ranks == 1 else 12) * learned,  # among ranks a copy that is sent
        "activations": max(back, forward),
        "images": (1 + AHEAD) * 4 * 3 * config.data.preprocessing.crop**2 * scale * step.shown,
        "method": kept.memory,
        "libraries": CONTEXT[device],
    }
