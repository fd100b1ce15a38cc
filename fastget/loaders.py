"""Batches of images: a pure function of (seed, stream, step), whoever decodes them.

A stream says what a step's batch is (a list, a sampler, a transform); a backend makes it: `torchvision` (PIL decoding
in threads), `dali` (on the GPU, or the CPU), `synthetic` (random images, for benchmarks). Images come out float32,
normalised, channels last in memory, on the device.

Shapes: b images in a rank's batch, H = W = crop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from torchvision.transforms.v2 import functional as VF

from fastget.lists import ImageList
from fastget.sampling import Draw, EvalSampler, TrainSampler

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
Backend = Literal["auto", "dali", "torchvision", "synthetic"]


@dataclass(frozen=True)
class Stream:
    """What a step's batch is."""

    images: ImageList
    sampler: TrainSampler | EvalSampler
    resize: int
    crop: int


@dataclass(frozen=True)
class Batch:
    """A rank's images of one step, on the device."""

    images: Tensor  # (b, 3, H, W) float32, normalised
    labels: Tensor  # (b,) int64
    index: NDArray[np.int64]  # (b,) into the list


class BadImage(ValueError):
    """An image that cannot be decoded."""


def choose_loader(backend: Backend, device: torch.device) -> Literal["dali", "torchvision", "synthetic"]:
    """`auto`: DALI on a GPU, where it is installed; torchvision on a CPU, where DALI is no faster."""
    if backend != "auto":
        return backend
    if device.type != "cuda":
        return "torchvision"
    try:
        import nvidia.dali  # noqa: F401  # only to see whether it is there
    except ImportError:
        return "torchvision"
    return "dali"


class Loader:
    """Batches of a stream, from any step on, prepared ahead of their use."""

    def __init__(self, stream: Stream, device: torch.device, backend: Backend = "auto", workers: int = 0) -> None:
        self.stream, self.device = stream, device
        self.backend = choose_loader(backend, device)
        self.workers = workers or os.cpu_count() or 1
        self._labels = torch.from_numpy(stream.images.labels).to(device)

    def batches(self, start: int = 0) -> Generator[Batch, None, None]:
        """From step `start` on: without end in training, to the end of the list in evaluation."""
        make = {"dali": _dali, "torchvision": _torchvision, "synthetic": _synthetic}[self.backend]
        for draw, images in make(self.stream, self.device, self.workers, start):
            index = torch.from_numpy(draw.index).to(self.device, non_blocking=True)
            yield Batch(images, self._labels[index], draw.index)


# --- torchvision ---------------------------------------------------------------------------------


def read_image(file: str, resize: int) -> Image.Image:
    """Decoded to RGB and resized to a square, antialiased. EXIF rotation is ignored, as DALI is told to."""
    try:
        with Image.open(file) as image:
            square: Image.Image = VF.resize(image.convert("RGB"), [resize, resize], antialias=True)
            return square
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadImage(f"cannot decode {file}: {error}; remove it, or find all such files before training") from error


def pixels(stream: Stream, draw: Draw, pool: ThreadPoolExecutor) -> Tensor:
    """(b, H, W, 3) uint8: the batch before normalisation."""
    out = np.empty((len(draw.index), stream.crop, stream.crop, 3), dtype=np.uint8)

    def load(row: int) -> None:
        image = np.asarray(read_image(stream.images.file(int(draw.index[row])), stream.resize))
        x, y = int(draw.x[row]), int(draw.y[row])
        cut = image[y : y + stream.crop, x : x + stream.crop]
        out[row] = cut[:, ::-1] if draw.flip[row] else cut

    for _ in pool.map(load, range(len(draw.index))):
        continue  # waits for each, and raises what it raised
    return torch.from_numpy(out)


def normalise(levels: Tensor) -> Tensor:
    """(b, H, W, 3) uint8 -> (b, 3, H, W) float32, channels last in memory."""
    mean = torch.tensor(MEAN, device=levels.device) * 255
    scale = 1 / (torch.tensor(STD, device=levels.device) * 255)
    return ((levels.float() - mean) * scale).permute(0, 3, 1, 2)


def _torchvision(stream: Stream, device: torch.device, workers: int, start: int) -> Iterator[tuple[Draw, Tensor]]:
    with ThreadPoolExecutor(workers) as pool, ThreadPoolExecutor(1) as ahead:

        def make(step: int) -> tuple[Draw, Tensor] | None:
            try:
                draw = stream.sampler(step)
            except StopIteration:
                return None
            return draw, pixels(stream, draw, pool)

        yield from _prefetch(make, ahead, device, start)


def _prefetch(
    make: Callable[[int], tuple[Draw, Tensor] | None], ahead: ThreadPoolExecutor, device: torch.device, start: int
) -> Iterator[tuple[Draw, Tensor]]:
    """Two batches ahead of the one in use."""
    waiting: list[Future[tuple[Draw, Tensor] | None]] = [ahead.submit(make, start + k) for k in range(2)]
    step = start + 2
    try:
        while (made := waiting.pop(0).result()) is not None:
            waiting.append(ahead.submit(make, step))
            step += 1
            draw, levels = made
            if device.type == "cuda":
                levels = levels.pin_memory()
            yield draw, normalise(levels.to(device, non_blocking=True))
    finally:
        for future in waiting:
            future.cancel()


# --- DALI ----------------------------------------------------------------------------------------


def _dali(stream: Stream, device: torch.device, workers: int, start: int) -> Iterator[tuple[Draw, Tensor]]:
    draws: list[Draw] = []
    pipeline = dali_pipeline(stream, device.index or 0 if device.type == "cuda" else None, workers, start, draws)
    try:
        pipeline.build()
        while True:
            (levels,) = pipeline.run()
            images = from_dlpack(levels.as_tensor()).clone()  # the pipeline uses its buffer again
            yield draws.pop(0), images.permute(0, 3, 1, 2)
    except StopIteration:
        return
    except RuntimeError as error:
        files = [stream.images.file(int(i)) for draw in draws for i in draw.index]
        raise BadImage(_blame(files, stream.resize) or f"DALI failed: {str(error).splitlines()[0]}") from error


def _blame(files: list[str], resize: int) -> str | None:
    """DALI does not always name the file that it failed on: look for it."""
    for file in files:
        try:
            read_image(file, resize)
        except BadImage as error:
            return str(error)
    return None


def dali_pipeline(stream: Stream, device_id: int | None, workers: int, start: int, draws: list[Draw]) -> Any:
    """The pipeline of a stream, not yet built; every batch it is handed is noted in `draws`."""
    try:
        from nvidia.dali import Pipeline, fn, types
    except ImportError as error:
        raise ValueError(
            f"data.loader=dali needs NVIDIA DALI, which cannot be imported ({error}): "
            "pip install nvidia-dali-cuda130, or use data.loader=torchvision"
        ) from error
    margin = stream.resize - stream.crop

    def source(iteration: int) -> tuple[list[NDArray[np.uint8]], ...]:
        draw = stream.sampler(start + iteration)
        draws.append(draw)
        paths = [np.frombuffer(os.fsencode(stream.images.file(int(i))), dtype=np.uint8) for i in draw.index]
        share = np.float32(1 / margin if margin else 0)
        x, y = (list((edge * share).astype(np.float32)) for edge in (draw.x, draw.y))
        return paths, x, y, list(draw.flip.astype(np.int32))

    pipeline = Pipeline(
        batch_size=stream.sampler.batch_size, num_threads=workers, device_id=device_id, prefetch_queue_depth=2
    )
    with pipeline:
        path, x, y, flip = fn.external_source(
            source=source,
            num_outputs=4,
            batch=True,
            dtype=[types.UINT8, types.FLOAT, types.FLOAT, types.INT32],
            ndim=[1, 0, 0, 0],
        )
        decoded = fn.decoders.image(
            fn.io.file.read(path),
            device="cpu" if device_id is None else "mixed",
            output_type=types.RGB,
            adjust_orientation=False,
        )
        square = fn.resize(
            decoded, size=[stream.resize, stream.resize], interp_type=types.INTERP_LINEAR, antialias=True
        )
        normalised = fn.crop_mirror_normalize(
            square,
            crop=(stream.crop, stream.crop),
            crop_pos_x=x,
            crop_pos_y=y,
            mirror=flip,
            dtype=types.FLOAT,
            output_layout="HWC",
            mean=[255 * m for m in MEAN],
            std=[255 * s for s in STD],
        )
        pipeline.set_outputs(normalised)
    return pipeline


# --- synthetic -----------------------------------------------------------------------------------


def _synthetic(stream: Stream, device: torch.device, workers: int, start: int) -> Iterator[tuple[Draw, Tensor]]:
    """The stream's labels over random images that cost nothing to make: what the network alone can do."""
    generator = torch.Generator(device).manual_seed(0)
    batch, side = stream.sampler.batch_size, stream.crop
    images = torch.randn(batch, side, side, 3, device=device, generator=generator).permute(0, 3, 1, 2)
    step = start
    while True:
        try:
            draw = stream.sampler(step)
        except StopIteration:
            return
        yield draw, images[: len(draw.index)]
        step += 1
