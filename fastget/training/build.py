"""The parts of a run, from its configuration: model, optimizer, loaders."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastget.bases import base_of
from fastget.bases.base import Base, Need
from fastget.common.precision import choose_precision
from fastget.common.ranks import Ranks
from fastget.common.timing import Timer
from fastget.config import Config, TrainConfig
from fastget.data.lists import UNLABELLED
from fastget.data.protocols import Domains
from fastget.loading.loader import Loader
from fastget.loading.sampling import EvalSampler, TrainSampler, fixed_draw
from fastget.loading.stream import Stream
from fastget.methods import method_of
from fastget.methods.base import Task
from fastget.networks.network import Network, build_network
from fastget.networks.provenance import Provenance, record_of
from fastget.training.optim import build_optimizer

EVAL_BATCH, SMALL = 256, 64  # images a batch of an evaluation; and the side up to which they cost little memory
# batch-norm statistics stay each rank's own, and so may a part of a method's memory; the option has two names
_NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
_WITHOUT_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if _NEW else "broadcast_buffers": False}


def task_of(config: Config, domains: Domains) -> Task:
    """What the method is built for."""
    return Task(len(domains.source.classes), config.network.bottleneck_dim, len(domains.target), config.data.setting)


def backbone_of(config: Config, domains: Domains, network: Network) -> Provenance:
    """Where the network's backbone, or that of the features, came from."""
    origin = domains.origin
    if origin is None:
        return record_of(config.network, network.backbone)
    return {"name": origin.backbone, "weights": origin.weights, "sha256": origin.weights_sha256}


def build_model(config: Config, domains: Domains, device: torch.device, ranks: Ranks, timer: Timer) -> Base:
    """Network, method and base model, on the device."""
    task = task_of(config, domains)
    given = None if domains.origin is None else domains.origin.dim
    network = build_network(config.network, task.num_classes, config.data.preprocessing.crop, given)
    method = method_of(config.method.name)(config.own, task)
    model = base_of(config.method.base)(
        network, method, config.optim.label_smoothing, timer, config.base, config.optim.labelled_target == "pooled"
    )
    if not config.optim.backbone_lr_scale:  # it would not move: no gradient is computed for it
        network.backbone.requires_grad_(False)
    if config.train.sync_batchnorm and ranks.world > 1:
        if device.type != "cuda":
            raise ValueError("train.sync_batchnorm needs CUDA devices: torch cannot synchronise batch-norm on CPUs")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    model.to(device)
    if lies_channels_last(config.train, device):
        model.network.to(memory_format=torch.channels_last)
    if config.train.compile:
        model.network.compile()
    return model


def lies_channels_last(config: TrainConfig, device: torch.device) -> bool:
    """Images always do. Weights that do too spare a CPU 1 to 3 % in float32, for which no run's bits are changed, and a
    sixth in bfloat16 (docs/performance.md)."""
    if config.channels_last in ("always", "never"):
        return config.channels_last == "always"
    if device.type == "cuda" or config.channels_last == "gpu":
        return device.type == "cuda"
    return choose_precision(config.precision, device, config.force_precision) != torch.float32


def optimizer_of(model: Base, config: Config, device: torch.device) -> torch.optim.Optimizer:
    """SGD over the backbone, the bottleneck, and everything else: classifier, what base and method learn."""
    backbone = list(model.network.backbone.parameters())
    ids = {id(p) for p in backbone}
    heads = [p for p in model.parameters() if id(p) not in ids]
    frozen = list(model.network.classifier.parameters()) if "classifier" in model.method.frozen else []
    bottleneck = list(model.network.bottleneck.parameters())
    return build_optimizer(config.optim, backbone, heads, device, bottleneck, frozen)


def distributed(model: Base, device: torch.device, ranks: Ranks) -> nn.Module:
    """What a step calls: the model itself, or, among several ranks, the one that averages their gradients."""
    if ranks.world == 1:
        return model
    devices = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, devices, **_WITHOUT_BUFFERS)


def shots_of(batch_size: int) -> int:
    """Labelled target images of SSDA's step: 36 = 24 + 12, as in the paper."""
    return max(1, batch_size // 3)


def eval_batch_size(config: Config, features: bool = False) -> int:
    """train.eval_batch_size, or as many as fit where a training batch does: an image that is learned from keeps every
    layer's output, one that is looked at those of two."""
    if config.train.eval_batch_size is not None:
        return config.train.eval_batch_size
    return (
        EVAL_BATCH
        if features or config.data.preprocessing.crop <= SMALL
        else min(EVAL_BATCH, 8 * config.train.batch_size)
    )


class Loaders:
    """The streams of a run: what it trains on, and what it is evaluated on."""

    def __init__(
        self,
        config: Config,
        seed: int,
        domains: Domains,
        device: torch.device,
        ranks: Ranks,
        needs: frozenset[Need] = frozenset(),  # of the base model
        dtype: torch.dtype = torch.float32,  # that the network works in
    ) -> None:
        self._views: Literal[1, 2] = 2 if "second view" in needs else 1
        # what sees its images twice mixes them first, in float32; any other's go straight to a convolution
        self._dtype = torch.float32 if "second view" in needs else dtype
        self._config, self._seed, self._domains, self._device, self._ranks = config, seed, domains, device, ranks
        # both loaders of the target read the same rows
        self._features = {role: torch.from_numpy(rows).to(device) for role, rows in domains.features.items()}
        batch = config.train.batch_size
        labelled = 0 if domains.labelled_target is None else shots_of(batch)
        if labelled >= batch:
            raise ValueError(f"data.setting=ssda needs a train.batch_size of at least 2, got {batch}")
        if labelled % ranks.world and batch % ranks.world == 0:
            raise ValueError(
                f"data.setting=ssda takes {labelled} labelled images of train.batch_size={batch}, which {ranks.world} "
                f"ranks cannot share evenly: use a multiple of {3 * ranks.world}"
            )
        self.source = self.training("source", batch)
        self.target = self.training("target", batch - labelled)
        self.shots = self.training("labelled_target", labelled) if labelled else None
        self.evaluation = self._evaluation("target")
        drawn = config.train.interim_images(len(domains.target))
        self.draw = fixed_draw(len(domains.target), drawn) if drawn < len(domains.target) else None
        # of the evaluations before the last one
        self.interim = self.evaluation if self.draw is None else self._evaluation("target", self.draw)
        self.validation = self._evaluation("validation") if domains.validation is not None else None

    @property
    def epoch_steps(self) -> int:
        """As many batches as the larger domain holds."""
        samplers = (self.source.stream.sampler, self.target.stream.sampler)
        return max(s.steps_per_epoch for s in samplers if isinstance(s, TrainSampler))

    def training(self, role: str, batch_size: int) -> Loader:
        data, ranks = self._config.data, self._ranks
        sampler = TrainSampler(
            len(self._domains.lists()[role]),
            batch_size,
            seed=self._seed,
            stream=role,
            margin=data.preprocessing.margin,
            flip=data.flip,
            rank=ranks.rank,
            world=ranks.world,
            views=self._views if role == "target" else 1,
        )
        return self._loader(role, sampler)

    def whole_source(self) -> Loader:
        """Every source image once, as in evaluation."""
        return self._evaluation("source")

    def _evaluation(self, role: str, chosen: NDArray[np.int64] | None = None) -> Loader:
        data, ranks = self._config.data, self._ranks
        images = len(self._domains.lists()[role])
        margin = data.preprocessing.margin
        size = eval_batch_size(self._config, features=role in self._features)
        place = {"rank": ranks.rank, "world": ranks.world}
        return self._loader(role, EvalSampler(images, size, margin=margin, **place, chosen=chosen))

    def _loader(self, role: str, sampler: TrainSampler | EvalSampler) -> Loader:
        data, domains = self._config.data, self._domains
        packed, features = domains.packed.get(role), self._features.get(role)
        images = domains.lists()[role]
        if role == "target" and isinstance(sampler, TrainSampler):  # nothing that trains can look at them
            images = dataclasses.replace(images, labels=np.full_like(images.labels, UNLABELLED))
        stream = Stream(
            images,
            sampler,
            data.preprocessing,
            packed,
            data.bad_threshold,
            data.max_pixels,
            features,
            data.dali_edges,
            self._dtype if isinstance(sampler, TrainSampler) else torch.float32,
        )
        return Loader(stream, self._device, data.loader, data.workers)
