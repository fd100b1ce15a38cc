"""What a step's batch is.

Shapes: b images in a rank's batch, H = W = crop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastget.common.choices import Edges
from fastget.common.preprocessing import Preprocessing
from fastget.data.decode import MAX_PIXELS
from fastget.data.lists import ImageList
from fastget.data.packed.read import Packed
from fastget.loading.bad_files import BadFile
from fastget.loading.sampling import EvalSampler, TrainSampler


@dataclass(frozen=True)
class Stream:
    """What a step's batch is."""

    images: ImageList
    sampler: TrainSampler | EvalSampler
    preprocessing: Preprocessing
    packed: Packed | None = None  # the images, resized already
    bad_threshold: float = 0.01  # share of the list that may turn bad before the stream gives up
    max_pixels: int = MAX_PIXELS  # of a file; one that tells of more is bad
    features: Tensor | None = None  # (N, D) on the device, where features take the place of the images
    edges: Edges = "plain"  # how DALI resizes the outermost rows and columns
    dtype: torch.dtype = torch.float32  # of the images, on a GPU


def image_type(stream: Stream, gpu: bool) -> torch.dtype:
    """What a batch's images are of: the stream's type on a GPU, float32 on a CPU. A run that keeps PIL's edges began
    before there was a choice: it goes on as it was."""
    return stream.dtype if gpu and stream.edges == "plain" else torch.float32


@dataclass(frozen=True)
class Batch:
    """A rank's images of one step, on the device."""

    images: Tensor  # (b, 3, H, W) normalised, float32 or the stream's type; (b, D) where they are features
    labels: Tensor  # (b,) int64
    index: NDArray[np.int64]  # (b,) into the list
    place: Tensor  # (b,) int64, the same on the device
    second: Tensor | None = None  # (b, 3, H, W) another view of each image, where the sampler has two
    bad: tuple[BadFile, ...] = ()  # files found bad since the batch before
