"""One training step, from the files to the memory: the ATDOC way against fastget, on the same samples, by turns.

    python -m benchmarks.bench_train                        ResNet-50 and ResNet-18 at 224 px, 16 + 16 images
    python -m benchmarks.bench_train --batch 36             as the papers train; minutes on a CPU, and 25 GB

The peer is written from the published description of ATDOC (Liang et al., CVPR 2021; tim-learn/ATDOC, demo_uda.py and
data_list.py, MIT): PIL and torchvision transforms one image at a time, channels first, source and target forwarded
apart, cross-entropy with labels smoothed on the host, a nearest-centroid term, SGD as torch.optim gives it by default,
then the target's images once more in evaluation mode for the memory. It has none of its logging, and its loader runs in
this process, which spares it the workers' cost. fastget is its own engine with GeT and the defaults of `fastget train`.

Both take the images, crops and mirrors that fastget's sampler draws. Each has a process of its own, since fastget sets
up its process's memory (fastget/training/allocator.py), which the peer's published code does not; the processes work by
turns. CPU time is the whole process's: a block is timed from a stream's opening to its close. An image pass is one
image forward; one that is learned from counts as three.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torchvision import models
from torchvision.transforms import functional as T

from benchmarks.bench_loader import make_photographs
from benchmarks.report import Row
from benchmarks.results import CountReads, by_turns, compared, script
from fastget.common.precision import cpu_has_bfloat16
from fastget.common.preprocessing import MEAN, STD
from fastget.common.ranks import Ranks
from fastget.config import Config, make_config
from fastget.data.domains import load_domains
from fastget.loading.stream import Stream
from fastget.networks.preprocessing import filled
from fastget.training.build import Loaders
from fastget.training.engine import Engine

CLASSES, WIDTH, RESIZE, CROP, SIZE = 12, 256, 256, 224, 500
PEER, OURS = "ATDOC's way", "fastget"


class Counts(NamedTuple):
    """Of a step."""

    passes: float
    reads: float  # that the host makes of the device


Block = Callable[[], Counts]


def write_images(root: Path, count: int) -> None:
    """Two domains of photographs in class folders."""
    for domain in ("source", "target"):
        folder = root / "drawn"
        folder.mkdir(exist_ok=True)
        made = make_photographs(folder, SIZE, "jpeg", count)
        for i, path in enumerate(made.paths):
            place = root / domain / f"c{i % CLASSES:02d}"
            place.mkdir(parents=True, exist_ok=True)
            (folder / path).rename(place / path)


def settings(root: Path, network: str, batch: int, **train: str) -> Config:
    return make_config(
        {
            "data.name": "folder", "data.root": str(root), "data.source": "source", "data.target": "target",
            "data.workers": 1, "data.cache": "off", "network.name": network, "network.weights": "none",
            "train.batch_size": batch, "train.max_steps": 10_000, "train.warmup_steps": 0, "train.device": "cpu",
            **{f"train.{name}": value for name, value in train.items()},
        }
    )  # fmt: skip


# --- the ATDOC way -------------------------------------------------------------------------------


class Atdoc:
    """demo_uda.py's step with ATDOC-NC."""

    def __init__(self, name: str, classes: int) -> None:
        backbone = getattr(models, name)()
        dim, backbone.fc = backbone.fc.in_features, nn.Identity()
        self.backbone, self.bottleneck = backbone, nn.Linear(dim, WIDTH)
        self.classifier = nn.Linear(WIDTH, classes)
        groups = [
            {"params": self.backbone.parameters(), "lr": 0.001},
            {"params": [*self.bottleneck.parameters(), *self.classifier.parameters()], "lr": 0.01},
        ]
        self.optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=1e-3, nesterov=True)
        self.memory = F.normalize(torch.rand(classes, WIDTH))
        self.classes, self.passes = classes, 0

    def see(self, images: Tensor, cost: int) -> tuple[Tensor, Tensor]:
        self.passes += cost * len(images)
        features = self.bottleneck(self.backbone(images))
        return features, self.classifier(features)

    def smoothed_cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Labels are made one-hot on the host, as there."""
        log_probabilities = F.log_softmax(logits, dim=1)
        given = torch.zeros(logits.shape).scatter_(1, labels.unsqueeze(1).cpu(), 1).to(logits.device)
        return (-(0.9 * given + 0.1 / self.classes) * log_probabilities).mean(0).sum()

    def step(self, source: Tensor, labels: Tensor, target: Tensor) -> None:
        self.backbone.train()
        _, on_source = self.see(source, 3)
        features, on_target = self.see(target, 3)
        nearest = (features.detach() @ F.normalize(self.memory).T).argmax(1)
        loss = self.smoothed_cross_entropy(on_source, labels) + 0.1 * F.cross_entropy(on_target, nearest)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.step()
        self.backbone.eval()
        with torch.no_grad():
            again, logits = self.see(target, 1)
            votes = F.one_hot(logits.argmax(1), self.classes).float()
            means = (votes.T @ again) / (votes.sum(0).unsqueeze(1) + 1e-8)
            self.memory = 0.9 * self.memory + 0.1 * means


def by_pil(stream: Stream, step: int) -> tuple[Tensor, Tensor]:
    """Resize, crop, flip, ToTensor, Normalize, one image at a time; then collated."""
    images, draw, made = stream.images, stream.sampler(step), []
    for index, x, y, flip in zip(draw.index, draw.x, draw.y, draw.flip, strict=True):
        with open(images.file(int(index)), "rb") as opened, Image.open(opened) as image:
            square = T.resize(image.convert("RGB"), [RESIZE, RESIZE])
        cut = T.crop(square, int(y), int(x), CROP, CROP)
        made.append(T.normalize(T.to_tensor(T.hflip(cut) if flip else cut), list(MEAN), list(STD)))
    return torch.stack(made), torch.from_numpy(images.labels[draw.index])


# --- both ----------------------------------------------------------------------------------------


def engine_of(root: Path, network: str, batch: int, **given: str) -> Engine:
    config = settings(root, network, batch, **given)
    return Engine(config, 0, load_domains(config.data), torch.device("cpu"))


def theirs(root: Path, network: str, batch: int, steps: int) -> Block:
    """The peer's steps, on what fastget's sampler draws."""
    config = filled(settings(root, network, batch))
    loaders = Loaders(config, 0, load_domains(config.data), torch.device("cpu"), Ranks())
    streams = [loaders.source.stream, loaders.target.stream]
    torch.manual_seed(0)
    peer = Atdoc(network, len(streams[0].images.classes))

    def run() -> Counts:
        peer.passes, reads = 0, CountReads()
        for step in range(steps):
            (source, labels), (target, _) = (by_pil(one, step) for one in streams)
            with reads:
                peer.step(source, labels, target)
        return Counts(peer.passes / steps, reads.count / steps)

    return run


def ours(root: Path, network: str, batch: int, steps: int, **given: str) -> Block:
    """fastget's steps. The first one ever holds the method's start, a pass over the target."""
    engine = engine_of(root, network, batch, **given)

    def run() -> Counts:
        engine.meter.read()
        stream, reads = engine.steps(), CountReads()
        for _ in range(steps):
            given = next(stream)
            with reads:
                engine.train_step(given)
        stream.close()
        return Counts(sum(engine.meter.read().passes.values()), reads.count / steps)

    return run


WAYS: dict[str, Callable[[Path, str, int, int], Block]] = {PEER: theirs, OURS: ours}
if cpu_has_bfloat16():  # which is asked for: no run's type depends on the CPU that it runs on
    WAYS[f"{OURS}, train.precision=bfloat16"] = partial(ours, precision="bfloat16")


def started(way: Callable[[Path, str, int, int], Block], root: Path, network: str, batch: int, steps: int) -> Block:
    """A method's start is in none of the figures."""
    block = way(root, network, batch, steps)
    block()
    return block


def measure(args: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for network in args.networks:
        with tempfile.TemporaryDirectory() as folder:
            write_images(Path(folder), max(2 * CLASSES, args.batch))
            makes: dict[str, Callable[[], Block]] = {
                name: partial(started, WAYS[name], Path(folder), network, args.batch, args.steps) for name in args.rows
            }
            counts, found, peaks = by_turns(makes, args.rounds)
            images = 2 * args.batch * args.steps
            for row in compared("train", f"{network}, {CROP} px, {args.batch} + {args.batch}", found, images):
                passes, reads = counts[row.row]
                more = {"image passes a step": passes, "host reads a step": reads, "peak MiB": peaks[row.row]}
                rows.append(row._replace(figures={**row.figures, **more}))
    return rows


if __name__ == "__main__":
    script(
        __doc__, measure,
        networks=(("resnet50", "resnet18"), "torchvision's backbones"), batch=(16, "images a step of each domain"),
        steps=(1, "steps in a block"), rounds=(2, "blocks of each"), rows=(tuple(WAYS), "of them, the first the peer"),
    )  # fmt: skip
