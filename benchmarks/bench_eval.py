"""An evaluation of the target, from its files to the accuracy: the ATDOC way against fastget, by turns.

    python -m benchmarks.bench_eval

The peer is ATDOC's cal_acc (tim-learn/ATDOC, demo_uda.py and utils.py, MIT): PIL and torchvision transforms with a
centre crop, channels first, each batch's outputs brought to the host and concatenated to those before, labels too.
fastget is `evaluate`, as a run calls it. Both run in one process, so that the peer has what fastget sets for it
(fastget/training/allocator.py) too.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms

from benchmarks.bench_train import CLASSES, CROP, OURS, PEER, RESIZE, settings, write_images
from benchmarks.report import Row
from benchmarks.results import compared, interleaved, one_thread, script
from fastget.common.preprocessing import MEAN, STD
from fastget.data.domains import load_domains
from fastget.data.lists import ImageList
from fastget.evaluation.score import evaluate
from fastget.networks.network import Network
from fastget.training.engine import Engine


@torch.no_grad()
def cal_acc(network: Network, images: ImageList, batch: int) -> float:
    """As there."""
    made = transforms.Compose(
        [
            transforms.Resize((RESIZE, RESIZE)),
            transforms.CenterCrop(CROP),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    outputs, labels = torch.empty(0), torch.empty(0)
    network.eval()
    for start in range(0, len(images), batch):
        shown: list[Tensor] = []
        for index in range(start, min(start + batch, len(images))):
            with open(images.file(index), "rb") as opened, Image.open(opened) as image:
                shown.append(made(image.convert("RGB")))
        outputs = torch.cat((outputs, network(torch.stack(shown))[1].float().cpu()))
        labels = torch.cat((labels, torch.from_numpy(images.labels[start : start + batch]).float()))
    return (outputs.argmax(1).float() == labels).float().mean().item()


def blocks(root: Path, network: str) -> dict[str, Callable[[], float]]:
    """name -> the accuracy."""
    config = settings(root, network, 8)
    engine = Engine(config, 0, load_domains(config.data), torch.device("cpu"))
    torch.manual_seed(0)

    return {
        PEER: lambda: cal_acc(engine.network, engine.target, 24),
        OURS: lambda: float(evaluate(engine.network, engine.loaders.evaluation).accuracy or 0),
    }


def measure(args: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for network in args.networks:
        with tempfile.TemporaryDirectory() as folder, one_thread():
            count = max(CLASSES, args.images)
            write_images(Path(folder), count)
            made = blocks(Path(folder), network)
            _, found = interleaved(made, args.rounds)
            rows += compared("eval", f"{network}, {count} images", found, count)
    return rows


if __name__ == "__main__":
    script(
        __doc__, measure, networks=(("resnet50", "resnet18"), "torchvision's backbones"),
        images=(48, "images of the target"), rounds=(3, "passes of each"),
    )  # fmt: skip
