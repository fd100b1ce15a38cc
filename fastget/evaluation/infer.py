"""What a network says of a whole list of images. Under several ranks each infers its share, no image twice.

The network runs in the number type that it is trained in, and nothing waits for the device between two batches: what
is said of them stays there until the pass is over.

Shapes: N images, n of them on this rank, D feature width, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastget.common.precision import autocast
from fastget.common.ranks import global_sum
from fastget.loading.loader import Loader
from fastget.loading.sampling import EvalSampler
from fastget.loading.stream import Batch
from fastget.networks.network import Network


class Inferred(NamedTuple):
    """What a network says of images."""

    features: list[Tensor]  # chunks of (n, D), if kept
    logits: Tensor  # (n, C)
    labels: Tensor  # (n,)
    place: NDArray[np.int64]  # (n,) into the list

    def among(self, chosen: NDArray[np.bool_]) -> Inferred:
        """Those of them that were chosen, by their place in the list; without features."""
        rows = np.flatnonzero(chosen[self.place])
        there = torch.from_numpy(rows).to(self.logits.device)
        return Inferred([], self.logits[there], self.labels[there], self.place[rows])


Look = Callable[[Tensor, Tensor, Tensor, NDArray[np.int64]], None]  # features, logits, labels, places of a batch
Between = Callable[[int], object]  # told how many more images are done; what it raises ends the pass


Watch = Callable[[], AbstractContextManager[Between]]  # around passes over images; gives what is called in them


def nothing(count: int) -> None:
    """Between batches."""


def unwatched() -> AbstractContextManager[Between]:
    """Around passes that nobody times, shows or stops."""
    return nullcontext(nothing)


class Said(NamedTuple):
    """What a network says of one batch, in float32."""

    features: Tensor  # (b, D)
    logits: Tensor  # (b, C)
    batch: Batch


def look_through(
    network: Network, loader: Loader, between: Between = nothing, dtype: torch.dtype = torch.float32
) -> Iterator[Said]:
    """This rank's share of the loader's list, batch by batch, in evaluation mode. Every rank calls `between` as
    often. The network runs in `dtype`."""
    training = network.training
    network.eval()
    batches = loader.batches()
    sampler = loader.stream.sampler
    left = sampler.most_steps if isinstance(sampler, EvalSampler) else 0
    try:
        for batch in batches:
            with torch.inference_mode(), autocast(loader.device, dtype):
                f, z = network(batch.images)
            yield Said(_ordinary(f), _ordinary(z), batch)
            left -= 1
            between(len(batch.index))
        for _ in range(left):  # another rank has a batch more, or fewer that were bad as a whole
            between(0)
    finally:
        batches.close()
        network.train(training)


def _ordinary(said: Tensor) -> Tensor:
    """In float32, and outside of inference mode: a method may keep it, and autograd refuses to save a tensor that was
    made within."""
    widened = said.float()
    return widened.clone() if widened.is_inference() else widened


def infer(
    network: Network,
    loader: Loader,
    *,
    keep_features: bool = False,
    between: Between = nothing,
    look: Look | None = None,
    dtype: torch.dtype = torch.float32,
) -> Inferred:
    """This rank's share of the loader's list, in evaluation mode. `look` is shown every batch on the way."""
    device = network.classifier.weight.device
    features: list[Tensor] = []
    logits = [torch.empty(0, network.classifier.out_features, device=device)]  # there may be fewer images than ranks
    labels = [torch.empty(0, dtype=torch.int64, device=device)]
    index = [np.empty(0, dtype=np.int64)]
    for f, z, batch in look_through(network, loader, between, dtype):
        if keep_features:
            features.append(f)
        if look is not None:
            look(f, z, batch.labels, batch.index)
        logits.append(z)
        labels.append(batch.labels)
        index.append(batch.index)
    return Inferred(features, torch.cat(logits), torch.cat(labels), np.concatenate(index))


class ClassMeans(NamedTuple):
    """The features of a labelled domain, by class."""

    means: Tensor  # (C, D) float32, zeros where there is no image
    counts: Tensor  # (C,) int64


def class_means(
    network: Network, loader: Loader, between: Between = nothing, dtype: torch.dtype = torch.float32
) -> ClassMeans:
    """Of every labelled image of the loader's list, over all ranks. Summed in float64, so that it does not depend on
    how the list is cut."""
    classes, width = network.classifier.weight.shape
    # the last row is for images without a label: to leave them out of a batch, the host would have to wait
    sums = torch.zeros(classes + 1, width + 1, dtype=torch.float64, device=network.classifier.weight.device)
    for f, _, batch in look_through(network, loader, between, dtype):
        counted = torch.cat([f, f.new_ones(len(f), 1)], 1).double()
        sums.index_add_(0, torch.where(batch.labels >= 0, batch.labels, classes), counted)
    sums = global_sum(sums[:classes])
    return ClassMeans((sums[:, :-1] / sums[:, -1:].clamp_min(1)).float(), sums[:, -1].long())


class WholeTarget:
    """The pass over the whole target that a method may ask for (`methods.base.Whole`), made when it is first asked;
    and, likewise, one over the source."""

    def __init__(
        self,
        network: Network,
        loader: Loader,
        source: Callable[[], Loader],
        between: Between = nothing,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._network, self._loader, self._source, self._between = network, loader, source, between
        self._dtype = dtype

    @cached_property
    def share(self) -> Inferred:
        """This rank's share, with the labels, which no method is to see."""
        return infer(self._network, self._loader, keep_features=True, between=self._between, dtype=self._dtype)

    @cached_property
    def source_means(self) -> Tensor:
        return class_means(self._network, self._source(), self._between, self._dtype).means

    @property
    def asked(self) -> bool:
        """Whether the pass was made."""
        return "share" in self.__dict__

    @property
    def features(self) -> list[Tensor]:
        return self.share.features

    @property
    def logits(self) -> Tensor:
        return self.share.logits

    @property
    def index(self) -> Tensor:
        return torch.from_numpy(self.share.place).to(self.logits.device)

    @property
    def classifier(self) -> nn.Linear:
        return self._network.classifier
