"""What `fastget selftest` says of the loaders: DALI's pixels against torchvision's, and their speed, on this machine.

On a GPU the real pipeline runs (`mixed` decode) and its speed stands beside synthetic images, which cost nothing; on a
processor DALI's CPU pipeline is compared, which is defined from the same description.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastget.common.choices import Decoder
from fastget.common.preprocessing import Preprocessing
from fastget.data.lists import ImageList
from fastget.loading.loader import Loader
from fastget.loading.sampling import EvalSampler, TrainSampler
from fastget.loading.stream import Stream
from fastget.selftest import table as selftest

Row = tuple[str, bool | None, str]  # name, passed (none: cannot run here), figures in words
MADE, BATCH = Preprocessing(), 36
# A GPU's JPEG decoder rounds otherwise than libjpeg; what comes after the decoder must agree to a level.
LEVELS = {"png": 1.01, "jpeg on the processor": 1.01, "jpeg on a GPU": 4.0}


def checks(device: torch.device) -> list[Row]:
    """The rows of the loaders, one for each encoding and one for the speed."""
    try:
        import nvidia.dali  # noqa: F401  # only to see whether it is there
    except ImportError as error:
        return [("DALI", None, f"DALI cannot be imported ({error})")]
    where = "a GPU" if device.type == "cuda" else "the processor"
    with tempfile.TemporaryDirectory(prefix="fastget-selftest-") as folder:
        rows: list[Row] = []
        for encoding in ("jpeg", "png"):
            images = _photographs(Path(folder), encoding)
            apart = _apart(images, device)
            most = LEVELS["png" if encoding == "png" else f"jpeg on {where}"]
            worst, mean = float(apart.quantile(0.999)), float(apart.mean())
            text = (
                f"99.9 % of the pixels within {worst:.2f} levels of torchvision's (allowed {most:g}), mean {mean:.3f}"
            )
            rows.append((f"DALI's {encoding} pixels on {where}", worst <= most, text))
        rows.append(_speed(_photographs(Path(folder), "jpeg"), device))
    return rows


def _photographs(folder: Path, encoding: str) -> ImageList:
    """Cuts of the photographs that ship with scikit-learn."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(image) for image in load_sample_images().images]
    paths = [f"{i:03d}.{'jpg' if encoding == 'jpeg' else 'png'}" for i in range(BATCH)]
    for i, path in enumerate(paths):
        cut = photos[i % 2].crop((i, i, i + 400, i + 340))
        if encoding == "jpeg":
            cut.save(folder / path, quality=95, subsampling=0)
        else:
            cut.save(folder / path, compress_level=1)
    return ImageList(encoding, folder, paths, np.zeros(len(paths), dtype=np.int64), ("photograph",))


def _apart(images: ImageList, device: torch.device) -> Tensor:
    """How many levels DALI's and torchvision's pixels lie apart: a sample of them, flat."""
    stream = Stream(images, EvalSampler(12, 12, margin=MADE.margin), MADE)
    decoders: tuple[Decoder, Decoder] = ("dali", "torchvision")
    dali, oracle = (next(Loader(stream, device, decoder).batches()).images.cpu() for decoder in decoders)
    std = torch.tensor(MADE.std).view(1, 3, 1, 1) * 255
    return ((dali - oracle) * std).abs().flatten()[::7]


def _speed(images: ImageList, device: torch.device) -> Row:
    """Images per second of DALI from files beside synthetic ones. There is no bound: it is for the reader."""
    figures = []
    decoders: tuple[Decoder, ...] = ("dali", "torchvision", "synthetic")
    for decoder in decoders:
        sampler = TrainSampler(len(images), BATCH, seed=0, stream="selftest", margin=MADE.margin, flip=True)
        batches = Loader(Stream(images, sampler, MADE), device, decoder).batches()
        next(batches)
        _wait(device)
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < 0.5:
            next(batches)
            steps += 1
        _wait(device)
        figures.append(f"{decoder} {steps * BATCH / (time.perf_counter() - start):,.0f}")
    return f"speed on {device.type}", True, f"images per second from 400 x 340 JPEGs: {', '.join(figures)}"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def loaders(machine: selftest.Machine) -> Iterator[selftest.Row]:
    """The rows, as `fastget selftest` takes them."""
    for name, passed, figures in checks(machine.device):
        if passed is None:
            yield selftest.cannot("loaders", name, figures)
        else:
            yield selftest.passed_if("loaders", name, passed, figures)


CHECKS: list[selftest.Check] = [loaders]
