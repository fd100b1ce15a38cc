"""What a step's batch is, and the files of a stream that could not be read in mid-run.

Shapes: b images in a rank's batch, H = W = crop.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastget.common.choices import Edges
from fastget.common.preprocessing import Preprocessing
from fastget.common.text import and_more
from fastget.data.decode import MAX_PIXELS, BadImage
from fastget.data.lists import ImageList
from fastget.data.packed.read import Packed
from fastget.loading.sampling import EvalSampler, TrainSampler


@dataclass(frozen=True)
class Stream:
    """What a step's batch is."""

    images: ImageList
    sampler: TrainSampler | EvalSampler
    preprocessing: Preprocessing
    packed: Packed | None = None  # the images, resized already
    bad_threshold: float = 0.01  # share of the list that may turn bad before the stream gives up
    max_pixels: int = MAX_PIXELS  # of a file; one whose header claims more is bad
    features: Tensor | None = None  # (N, D) on the device, where features take the place of the images
    edges: Edges = "plain"  # how DALI resizes the outermost rows and columns
    dtype: torch.dtype = torch.float32  # of the images, on a GPU

    def image_type(self, *, gpu: bool) -> torch.dtype:
        """What a batch's images are of: `dtype` on a GPU, float32 on a CPU. A run that keeps PIL's edges began before
        there was a choice, and stays as it was."""
        return self.dtype if gpu and self.edges == "plain" else torch.float32


@dataclass(frozen=True)
class BadFile:
    """A file that could not be read in mid-run. A training batch has another image in its place; evaluation none."""

    path: str
    reason: str
    step: int  # whose batch it was first missed in


@dataclass(frozen=True)
class Batch:
    """A rank's images of one step, on the device."""

    images: Tensor  # (b, 3, H, W) normalised, float32 or the stream's type; (b, D) where they are features
    labels: Tensor  # (b,) int64
    index: NDArray[np.int64]  # (b,) into the list
    place: Tensor  # (b,) int64, the same on the device
    second: Tensor | None = None  # (b, 3, H, W) another view of each image, where the sampler has two
    bad: tuple[BadFile, ...] = ()  # files found bad since the batch before


class TooManyBadImages(ValueError):
    """More files of a stream turned bad than data.bad_threshold allows."""

    def __init__(self, name: str, files: list[BadFile], length: int, threshold: float) -> None:
        self.files = files
        first = and_more([f"{bad.path} ({bad.reason})" for bad in files], 3)
        super().__init__(
            f"{len(files):,} of the {length:,} images of {name} cannot be read any more, over data.bad_threshold="
            f"{threshold:g}: {first}. Is the disk still there? Run `fastget data check`"
        )


class BadFiles:
    """The files of a list that turned out bad while it was read; safe to use from several threads."""

    def __init__(self, images: ImageList, threshold: float) -> None:
        self._images, self._threshold = images, threshold
        self._most = max(1, int(threshold * len(images))) if threshold else 0  # one file never ends a run
        self._files: dict[int, BadFile] = {}  # by their place in the list
        self._reported = 0
        self._lock = threading.Lock()

    def __contains__(self, index: int) -> bool:
        return index in self._files

    def __len__(self) -> int:
        return len(self._files)

    @property
    def files(self) -> list[BadFile]:
        """All of them so far."""
        with self._lock:
            return list(self._files.values())

    def add(self, index: int, step: int, error: BadImage) -> None:
        """Note a file. Raises TooManyBadImages when there are too many."""
        with self._lock:
            self._files.setdefault(index, BadFile(error.path, error.reason, step))
            if len(self._files) > self._most:
                raise self.too_many()

    def too_many(self) -> TooManyBadImages:
        return TooManyBadImages(self._images.name, list(self._files.values()), len(self._images), self._threshold)

    def news(self) -> tuple[BadFile, ...]:
        """Those found since the last call."""
        with self._lock:
            new = tuple(self._files.values())[self._reported :]
            self._reported += len(new)
            return new
