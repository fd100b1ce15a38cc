"""Who makes a stream's batches: a pure function of (seed, stream, step), whoever decodes them.

A stream says what a step's batch is (a list, a sampler, a transform); a decoder makes it: `torchvision` (PIL decoding
in threads), `dali` (on the GPU, or the CPU), `synthetic` (random images, for benchmarks). Where a packed cache is at
hand, its records take the place of the files: raw ones are cut by the processor, JPEGs are decoded by libjpeg-turbo on
a CPU and by DALI on a GPU. Images come out normalised, channels last in memory, on the device: float32, or on a GPU
the type that the stream asks for. Of stored features nothing is decoded: a batch is their rows.

Shapes: b images in a rank's batch, H = W = crop.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Literal

import torch
from torch import Tensor

from fastget.common.choices import Decoder
from fastget.loading.dali import dali_batches
from fastget.loading.pixels import DrawnBatch, normalise, read_batch
from fastget.loading.sampling import Draw
from fastget.loading.stream import BadFiles, Batch, Stream

AHEAD = 2  # batches that the processor prepares ahead of the one in use


def choose_loader(decoder: Decoder, device: torch.device) -> Literal["dali", "torchvision", "synthetic"]:
    """`auto`: DALI on a GPU, where it is installed; torchvision on a CPU: PIL's own pixels."""
    if decoder != "auto":
        return decoder
    if device.type != "cuda":
        return "torchvision"
    try:
        import nvidia.dali  # noqa: F401  # only to see whether it is there
    except ImportError:
        return "torchvision"
    return "dali"


class Loader:
    """Batches of a stream, from any step on, prepared ahead of their use."""

    def __init__(self, stream: Stream, device: torch.device, decoder: Decoder = "auto", workers: int = 0) -> None:
        wanted = stream.preprocessing.resizing
        if stream.packed and stream.packed.cache.encoding.resizing != wanted:
            raise ValueError(
                f"the packed cache {stream.packed.cache.folder} holds images of {stream.packed.resize} pixels, "
                f"{stream.packed.cache.encoding.interpolation}, and the stream wants {wanted[0]}, {wanted[1]}: "
                f"pack again with --resize {wanted[0]} --interpolation {wanted[1]}"
            )
        self.stream, self.device = stream, device
        self.decoder = choose_loader(decoder, device)
        self.workers = workers or os.cpu_count() or 1
        self.bad = BadFiles(stream.images, stream.bad_threshold)
        self._labels = torch.from_numpy(stream.images.labels).to(device)

    def batches(self, start: int = 0) -> Generator[Batch, None, None]:
        """From step `start` on: without end in training, to the end of the list in evaluation.

        A file that can no longer be read is noted in `bad`, and in the `bad` of the next batch; training shows another
        image in its place, evaluation leaves it out. Raises TooManyBadImages past the stream's bad_threshold.
        """
        for draw, views in self._make(start):
            if not len(draw.index):
                continue  # an evaluation batch of nothing but bad files
            place = torch.from_numpy(draw.index).to(self.device, non_blocking=True)
            second = views[1] if len(views) > 1 else None
            yield Batch(views[0], self._labels[place], draw.index, place, second, self.bad.news())

    def _make(self, start: int) -> Iterator[DrawnBatch]:
        packed = self.stream.packed
        if self.stream.features is not None:
            return _stored(self.stream, self.stream.features, start)
        if self.decoder == "synthetic":
            return _synthetic(self.stream, self.device, start)
        on_host = packed is not None and (packed.format == "raw" or self.device.type == "cpu")
        make = _threaded if self.decoder == "torchvision" or on_host else dali_batches
        return make(self.stream, self.bad, self.device, self.workers, start)


def _threaded(stream: Stream, bad: BadFiles, device: torch.device, workers: int, start: int) -> Iterator[DrawnBatch]:
    """Made by the processor, in threads: uint8 until it is on a GPU, which normalises it."""
    gpu = device.type == "cuda"

    def make(step: int) -> DrawnBatch | None:
        try:
            draw, views = read_batch(stream, bad, step, pool, workers, torch.uint8 if gpu else torch.float32)
        except StopIteration:
            return None
        return draw, [view.pin_memory() if gpu else view.permute(0, 3, 1, 2) for view in views]

    def finished(view: Tensor) -> Tensor:
        return normalise(view.to(device, non_blocking=True), stream.preprocessing, stream.image_type(gpu=True))

    with ThreadPoolExecutor(workers) as pool, ThreadPoolExecutor(1) as ahead:
        waiting: list[Future[DrawnBatch | None]] = [ahead.submit(make, start + k) for k in range(AHEAD)]
        try:
            for step in count(start + AHEAD):
                if (made := waiting.pop(0).result()) is None:
                    return
                waiting.append(ahead.submit(make, step))
                draw, views = made
                yield draw, [finished(view) for view in views] if gpu else views
        finally:
            for future in waiting:
                future.cancel()


def _stored(stream: Stream, features: Tensor, start: int) -> Iterator[DrawnBatch]:
    """Rows of features that are on the device already. They have no second view: it is the first once more."""
    for draw in _draws(stream, start):
        shown = features[torch.from_numpy(draw.index).to(features.device, non_blocking=True)].float()
        yield draw, [shown] * len(draw.views)


def _synthetic(stream: Stream, device: torch.device, start: int) -> Iterator[DrawnBatch]:
    """The stream's labels over random images that cost nothing to make: what the network alone can do."""
    generator = torch.Generator(device).manual_seed(0)
    batch, side = stream.sampler.batch_size, stream.preprocessing.crop
    images = torch.randn(batch, side, side, 3, device=device, generator=generator).permute(0, 3, 1, 2)
    images = images.to(stream.image_type(gpu=device.type == "cuda"))
    for draw in _draws(stream, start):
        yield draw, [images[: len(draw.index)]] * len(draw.views)


def _draws(stream: Stream, start: int) -> Iterator[Draw]:
    """What the sampler draws from step `start` on, to its end if it has one."""
    for step in count(start):
        try:
            yield stream.sampler(step)
        except StopIteration:
            return
