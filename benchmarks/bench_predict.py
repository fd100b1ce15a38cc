"""Classes of files, as `fastget predict` gives them, against a plain loop over them, by turns.

    python -m benchmarks.bench_predict

The peer is the recipe of torchvision's documentation ("Classification", torchvision.models): an image at a time is
decoded by PIL, resized, cropped, normalised, shown to the network in evaluation mode, and its best class read.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torchvision import transforms

from benchmarks.bench_loader import make_photographs
from benchmarks.report import Row
from benchmarks.results import compared, interleaved, one_thread, script
from fastget.common.preprocessing import MEAN, STD, Preprocessing
from fastget.config import make_config
from fastget.networks.network import build_network
from fastget.serving.predictor import Predictor

PEER, OURS, CLASSES = "an image at a time", "fastget", 12


def predictor_of(name: str) -> Predictor:
    """A network that nothing was learned by: its speed is that of any."""
    config = make_config({"network.name": name, "network.weights": "none"})
    network = build_network(config.network, CLASSES).eval()
    classes = tuple(str(c) for c in range(CLASSES))
    device = torch.device("cpu")
    return Predictor(network, classes, Preprocessing(), device, Path("none"), 0, config.to_dict())


@torch.no_grad()
def plain_loop(predictor: Predictor, files: list[str]) -> list[int]:
    made = transforms.Compose(
        [
            transforms.Resize((256, 256)),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    found = []
    for file in files:
        with Image.open(file) as image:
            shown = made(image.convert("RGB")).unsqueeze(0)
        found.append(int(predictor.network(shown)[1].argmax(1).item()))
    return found


def blocks(folder: Path, network: str, count: int) -> dict[str, Callable[[], list[int]]]:
    """name -> the classes of the files."""
    images = make_photographs(folder, 500, "jpeg", count)
    files = [images.file(i) for i in range(count)]
    torch.manual_seed(0)
    predictor = predictor_of(network)
    return {
        PEER: lambda: plain_loop(predictor, files),
        OURS: lambda: [int(row.label) for row in predictor.predict(files, workers=1) if row.label is not None],
    }


def measure(args: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for network in args.networks:
        with tempfile.TemporaryDirectory() as folder, one_thread():
            made = blocks(Path(folder), network, args.images)
            _, found = interleaved(made, args.rounds)
            rows += compared("predict", f"{network}, {args.images} files of 500 px", found, args.images)
    return rows


if __name__ == "__main__":
    script(
        __doc__, measure, networks=(("resnet50", "resnet18"), "torchvision's backbones"),
        images=(48, "files"), rounds=(3, "passes of each"),
    )  # fmt: skip
