"""Batches made by the processor: decoded in threads (by PIL, as torchvision's transforms are), or cut from a cache.

Everything stays uint8 until it is on the device, which normalises it. A file that cannot be read is replaced, in
training, by another image of the same stream, drawn like everything else from (seed, stream, step, row); evaluation
leaves it out, so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastget.common.preprocessing import Preprocessing
from fastget.data.decode import BadImage, read_image
from fastget.loading.bad_files import ATTEMPTS, BadFiles
from fastget.loading.sampling import Draw, TrainSampler
from fastget.loading.stream import Stream, image_type

AHEAD = 2  # batches prepared ahead of the one in use
DrawnBatch = tuple[Draw, Tensor, Tensor | None]  # what was drawn in the end, the images, their second view


def read_square(stream: Stream, index: int) -> NDArray[np.uint8]:
    """(R, R, 3): an image of the list, resized, from the cache if there is one and the record is whole."""
    if stream.packed:
        square = stream.packed.read(index)
        if square is not None:
            return square
    made = stream.preprocessing
    return np.array(read_image(stream.images.file(index), made.resize, made.interpolation, stream.max_pixels))


def stand_in(stream: Stream, bad: BadFiles, step: int, row: int) -> tuple[int, NDArray[np.uint8]] | None:
    """Another image for a row whose own cannot be read, and its pixels; none in evaluation."""
    if not isinstance(stream.sampler, TrainSampler):
        return None
    for attempt in range(ATTEMPTS):
        index = stream.sampler.replacement(step, row, attempt)
        if index in bad:
            continue
        try:
            return index, read_square(stream, index)
        except BadImage as error:
            bad.add(index, step, error)
    raise bad.too_many()


def read_row(stream: Stream, bad: BadFiles, step: int, row: int, index: int) -> tuple[int, NDArray[np.uint8]] | None:
    """The image of a row, or its stand-in."""
    if index not in bad:
        try:
            return index, read_square(stream, index)
        except BadImage as error:
            bad.add(index, step, error)
    return stand_in(stream, bad, step, row)


def read_batch(
    stream: Stream,
    bad: BadFiles,
    step: int,
    pool: ThreadPoolExecutor,
    workers: int,
    dtype: torch.dtype = torch.uint8,  # float32: normalised at once
) -> DrawnBatch:
    """(b, H, W, 3): a step's batch and its second view, on the host. StopIteration after the last."""
    draw = stream.sampler(step)
    rows = len(draw.index)
    index = draw.index.copy()
    views = [draw] + ([draw.second] if draw.second else [])
    side = stream.preprocessing.crop
    out = [torch.empty(rows, side, side, 3, dtype=dtype) for _ in views]

    def load(first: int) -> None:
        for row in range(first, rows, workers):
            found = read_row(stream, bad, step, row, int(index[row]))
            if found is None:
                index[row] = -1
                continue
            index[row], square = found[0], torch.from_numpy(found[1])
            for view, images in zip(views, out, strict=True):
                x, y = int(view.x[row]), int(view.y[row])
                cut = square[y : y + side, x : x + side]
                cut = cut.flip(1) if view.flip[row] else cut  # torch mirrors six times as fast as numpy
                if dtype == torch.uint8:
                    images[row] = cut
                else:
                    _normalise_into(images[row], cut, stream.preprocessing)

    for _ in pool.map(load, range(min(workers, rows))):
        continue  # waits for each, and raises what it raised
    drawn = replace(draw, index=index)
    if (index < 0).any():
        kept = np.flatnonzero(index >= 0)
        drawn, out = drawn.rows(kept), [images[torch.from_numpy(kept)] for images in out]
    return drawn, out[0], out[1] if draw.second else None


@lru_cache(maxsize=8)
def _scale_and_shift(preprocessing: Preprocessing, repeat: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of the three channels, `repeat` times over: levels * scale + shift is the normalised value."""
    scale = 1 / (torch.tensor(preprocessing.std) * 255)
    shift = -torch.tensor(preprocessing.mean) * 255 * scale
    return scale.repeat(repeat).to(device), shift.repeat(repeat).to(device)


def _normalise_into(result: Tensor, image: Tensor, preprocessing: Preprocessing) -> None:
    """(H, W, 3) uint8 -> float32. One image stays in the processor's cache: twelve times as fast as a batch at once."""
    side = result.shape[1]
    scale, shift = _scale_and_shift(preprocessing, side, result.device)
    torch.addcmul(shift, image.float().reshape(-1, 3 * side), scale, out=result.view(-1, 3 * side))


def normalise(images: Tensor, preprocessing: Preprocessing, dtype: torch.dtype = torch.float32) -> Tensor:
    """(b, H, W, 3) uint8 -> (b, 3, H, W) of the type, channels last in memory. Computed in float32."""
    out = torch.empty(images.shape, dtype=dtype, device=images.device)
    if dtype != torch.float32:  # one pass over the bytes
        scale, shift = _scale_and_shift(preprocessing, 1, images.device)
        torch.addcmul(shift, images, scale, out=out)
    elif images.device.type == "cpu":
        for image, result in zip(images, out, strict=True):
            _normalise_into(result, image, preprocessing)
    else:
        scale, shift = _scale_and_shift(preprocessing, 1, images.device)
        torch.addcmul(shift, images.float(), scale, out=out)
    return out.permute(0, 3, 1, 2)


def threaded_batches(
    stream: Stream, bad: BadFiles, device: torch.device, workers: int, start: int
) -> Iterator[DrawnBatch]:
    """Normalised batches on the device, from step `start` on, made ahead of their use."""

    def make(step: int, pool: ThreadPoolExecutor) -> DrawnBatch | None:
        try:
            dtype = torch.uint8 if device.type == "cuda" else torch.float32
            draw, first, second = read_batch(stream, bad, step, pool, workers, dtype)
        except StopIteration:
            return None
        ready = Tensor.pin_memory if device.type == "cuda" else _channels_first
        return draw, ready(first), ready(second) if second is not None else None

    with ThreadPoolExecutor(workers) as pool, ThreadPoolExecutor(1) as ahead:
        waiting: list[Future[DrawnBatch | None]] = [ahead.submit(make, start + k, pool) for k in range(AHEAD)]
        step = start + AHEAD
        try:
            while (made := waiting.pop(0).result()) is not None:
                waiting.append(ahead.submit(make, step, pool))
                step += 1
                yield _to_device(made, device, stream) if device.type == "cuda" else made
        finally:
            for future in waiting:
                future.cancel()


def _channels_first(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2)


def _to_device(made: DrawnBatch, device: torch.device, stream: Stream) -> DrawnBatch:
    draw, *views = made
    dtype = image_type(stream, gpu=True)
    first, second = (
        None if view is None else normalise(view.to(device, non_blocking=True), stream.preprocessing, dtype)
        for view in views
    )
    assert first is not None  # a batch has a first view
    return draw, first, second
