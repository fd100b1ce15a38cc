"""What a batch's pixels are, on the host, whoever asks: read from files or a cache, cut, normalised.

A file that cannot be read is replaced, in training, by another image of the same stream, drawn like everything else
from (seed, stream, step, row); evaluation leaves it out, so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastget.common.preprocessing import Preprocessing
from fastget.data.decode import BadImage, read_image
from fastget.loading.sampling import Draw, TrainSampler
from fastget.loading.stream import BadFiles, Stream

ATTEMPTS = 100  # stand-ins tried for one bad image
DrawnBatch = tuple[Draw, list[Tensor]]  # what was drawn in the end, and its one or two views


def draw_readable(stream: Stream, bad: BadFiles, step: int) -> Draw:
    """A step's draw with the files known as bad replaced, or left out in evaluation. StopIteration after the last."""
    draw = stream.sampler(step)
    rows = [row for row, index in enumerate(draw.index.tolist()) if index in bad]
    if not rows:
        return draw
    if not isinstance(stream.sampler, TrainSampler):
        return draw.rows(np.setdiff1d(np.arange(len(draw.index)), rows))
    index = draw.index.copy()
    for row in rows:
        tries = (stream.sampler.replacement(step, row, attempt) for attempt in range(ATTEMPTS))
        other = next((i for i in tries if i not in bad), None)
        if other is None:
            raise bad.too_many()
        index[row] = other
    return replace(draw, index=index)


def read_square(stream: Stream, index: int) -> NDArray[np.uint8]:
    """(R, R, 3): an image of the list, resized, from the cache if there is one and the record is whole."""
    square = stream.packed.read(index) if stream.packed else None
    if square is not None:
        return square
    return np.array(read_image(stream.images.file(index), *stream.preprocessing.resizing, stream.max_pixels))


def read_batch(
    stream: Stream,
    bad: BadFiles,
    step: int,
    pool: ThreadPoolExecutor,
    workers: int,
    dtype: torch.dtype = torch.uint8,  # float32: normalised at once
) -> DrawnBatch:
    """(b, H, W, 3): a step's batch, on the host. StopIteration after the last."""
    while True:  # again for each time that a file turns out bad
        draw = draw_readable(stream, bad, step)
        rows, side = len(draw.index), stream.preprocessing.crop
        views = [torch.empty(rows, side, side, 3, dtype=dtype) for _ in draw.views]
        shares = [range(first, rows, workers) for first in range(min(workers, rows))]
        whole = pool.map(partial(_read_rows, stream, bad, step, draw, views), shares)
        if all(list(whole)):
            return draw, views


def _read_rows(
    stream: Stream, bad: BadFiles, step: int, draw: Draw, views: Sequence[Tensor], rows: Iterable[int]
) -> bool:
    """Some images, cut into the views; false if one is bad, which is noted."""
    side, whole = stream.preprocessing.crop, True
    for row in rows:
        index = int(draw.index[row])
        try:
            square = torch.from_numpy(read_square(stream, index))
        except BadImage as error:
            bad.add(index, step, error)
            whole = False
            continue
        for view, images in zip(draw.views, views, strict=True):
            x, y = int(view.x[row]), int(view.y[row])
            cut = square[y : y + side, x : x + side]
            cut = cut.flip(1) if view.flip[row] else cut  # torch mirrors six times as fast as numpy
            if images.dtype == torch.uint8:
                images[row] = cut
            else:
                _normalise_into(images[row], cut, stream.preprocessing)
    return whole


# --- normalising ---------------------------------------------------------------------------------


def normalise(images: Tensor, preprocessing: Preprocessing, dtype: torch.dtype = torch.float32) -> Tensor:
    """(b, H, W, 3) uint8 -> (b, 3, H, W) of the type, channels last in memory. Computed in float32."""
    out = torch.empty(images.shape, dtype=dtype, device=images.device)
    if dtype == torch.float32 and images.device.type == "cpu":
        for image, result in zip(images, out, strict=True):
            _normalise_into(result, image, preprocessing)
    else:
        scale, shift = _scale_and_shift(preprocessing, 1, images.device)
        levels = images.float() if dtype == torch.float32 else images  # of a half type: one pass over the bytes
        torch.addcmul(shift, levels, scale, out=out)
    return out.permute(0, 3, 1, 2)


def _normalise_into(result: Tensor, image: Tensor, preprocessing: Preprocessing) -> None:
    """(H, W, 3) uint8 -> float32. One image stays in the processor's cache: twelve times as fast as a batch at once."""
    side = result.shape[1]
    scale, shift = _scale_and_shift(preprocessing, side, result.device)
    torch.addcmul(shift, image.float().reshape(-1, 3 * side), scale, out=result.view(-1, 3 * side))


@lru_cache(maxsize=8)
def _scale_and_shift(preprocessing: Preprocessing, repeat: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of the three channels, `repeat` times over: levels * scale + shift is the normalised value."""
    scale = 1 / (torch.tensor(preprocessing.std) * 255)
    shift = -torch.tensor(preprocessing.mean) * 255 * scale
    return scale.repeat(repeat).to(device), shift.repeat(repeat).to(device)
