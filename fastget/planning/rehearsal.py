"""What the steps of a run send through its network, counted by the run's own meter.

A run of the same method, base model and batch is made for a few steps on a handful of random features in place of
images: then nobody has to write down a second time what a method looks at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fastget.config import Config
from fastget.data.feature_store import Origin
from fastget.data.lists import ImageList
from fastget.data.protocols import Domains
from fastget.training.cost import LEARNED, LOOKED_AT, Meter
from fastget.training.engine import Engine

WIDTH = 8  # of the random features
EPOCH, STEPS = 2, 5  # steps of an epoch, and of the rehearsal: an epoch begins after the method has started


class Call(NamedTuple):
    """Of the network."""

    rows: float  # images
    trained: bool

    @property
    def passes(self) -> float:
        return self.rows * (LEARNED if self.trained else LOOKED_AT)


class Kind(NamedTuple):
    """A kind of step."""

    calls: tuple[Call, ...]
    shown: int  # images that the loaders deliver
    parts: int  # steps of the optimizer

    @property
    def passes(self) -> float:
        return sum(call.passes for call in self.calls)


@dataclass(frozen=True)
class Rehearsal:
    """Of a batch on one rank."""

    warm: Kind  # the first step, of the warm-up if there is one
    adapting: Kind  # a step after it
    starts: dict[str, int]  # passes over a whole domain when the method starts
    epochs: dict[str, int]  # and at every later epoch
    unlabelled: int  # target images a step without labels
    shots: int  # and with


class _Noted(Meter):
    """Notes every call."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.calls: list[Call] = []

    def images(self, what: str, rows: int, trained: bool) -> None:
        super().images(what, rows, trained)
        self.calls.append(Call(rows, trained))


def rehearse(config: Config, classes: int, warm: bool) -> Rehearsal:
    """Of the configuration's batch, with or without a warm-up."""
    with one_thread():
        return _rehearse(config, classes, warm)


def _rehearse(config: Config, classes: int, warm: bool) -> Rehearsal:
    noted = _Noted()
    domains = random_domains(config, classes, EPOCH * config.train.batch_size)
    engine = Engine(_short(config, warm), 0, domains, noted.device, meter=noted)
    looked: list[int] = []
    engine.between = looked.append
    kinds, passes = [], []
    batches = engine.batches()
    try:
        for batch in batches:
            noted.calls, looked[:] = [], []
            engine.train_step(batch)
            shown = sum(len(part.labels) for part in batch.given)
            frozen = config.optim.backbone_lr_scale == 0
            calls = tuple(call._replace(trained=call.trained and not frozen) for call in noted.calls)
            kinds.append(Kind(calls, shown, 2 if "own step" in engine.method.needs and batch.target is not None else 1))
            passes.append(_domains_in(sum(looked), len(engine.target), len(engine.domains.source)))
    finally:
        batches.close()
    labelled = 0 if engine.loaders.shots is None else engine.loaders.shots.stream.sampler.batch_size
    unlabelled = engine.loaders.target.stream.sampler.batch_size
    return Rehearsal(kinds[0], kinds[-1], passes[int(warm)], passes[EPOCH], unlabelled, labelled)


@contextmanager
def one_thread() -> Iterator[None]:
    """Tiny operations wait for each other's threads longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _short(config: Config, warm: bool) -> Config:
    """Features for images, narrow layers, a step of warm-up or none."""
    network = dataclasses.replace(config.network, bottleneck_dim=WIDTH)
    data = dataclasses.replace(config.data, name="features")
    train = dataclasses.replace(config.train, device="cpu", precision="float32", max_steps=STEPS,
                                warmup_steps=int(warm), watch=0, compile=False, sync_batchnorm=False)  # fmt: skip
    own = config.own
    if hasattr(own, "backend"):  # a GPU's kernels are not asked for here
        own = dataclasses.replace(own, backend="reference")
    return dataclasses.replace(config, data=data, network=network, train=train, own=own)


def random_domains(config: Config, classes: int, images: int, features: bool = True) -> Domains:
    """Two domains, the source one image larger; of random features, or of names of images that nobody opens."""
    batch = config.train.batch_size
    sizes = {"source": images + 1, "target": images}
    if config.data.setting == "ssda":
        sizes["labelled_target"] = max(batch, classes)
    names = tuple(f"class {c}" for c in range(classes))
    lists = {
        role: ImageList(role, Path(), [str(i) for i in range(size)], np.arange(size) % classes, names)
        for role, size in sizes.items()
    }
    random = np.random.default_rng(0)
    rows = {role: random.standard_normal((size, WIDTH), dtype=np.float32) for role, size in sizes.items()}
    origin = Origin("rehearsal", "none", "none", "", WIDTH, "float32") if features else None
    return Domains(lists["source"], lists["target"], lists.get("labelled_target"), features=rows if features else {},
                   origin=origin)  # fmt: skip


def _domains_in(images: int, target: int, source: int) -> dict[str, int]:
    """How often each domain is among so many images; their sizes differ by one."""
    for whole in range(1 + images // target):
        left = images - whole * target
        if left % source == 0:
            return {"target": whole, "source": left // source}
    raise AssertionError(f"{images} images are no whole domains of {target} and {source}")
