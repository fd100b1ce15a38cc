"""What a network says of a whole list of images. Under several ranks each infers its share, no image twice.

Shapes: N images, n of them on this rank, D feature width, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastget.common.ranks import global_sum
from fastget.loading.loader import Batch, Loader
from fastget.loading.sampling import EvalSampler
from fastget.networks.network import Network


class Inferred(NamedTuple):
    """What a network says of images."""

    features: list[Tensor]  # chunks of (n, D), if kept
    logits: Tensor  # (n, C)
    labels: Tensor  # (n,)
    place: NDArray[np.int64]  # (n,) into the list


Look = Callable[[Tensor, Tensor, Tensor, NDArray[np.int64]], None]  # features, logits, labels, places of a batch
Between = Callable[[int], object]  # told how many more images are done; what it raises ends the pass


def nothing(count: int) -> None:
    """Between batches."""


class Said(NamedTuple):
    """What a network says of one batch."""

    features: Tensor  # (b, D)
    logits: Tensor  # (b, C)
    batch: Batch


def look_through(network: Network, loader: Loader, between: Between = nothing) -> Iterator[Said]:
    """This rank's share of the loader's list, batch by batch, in evaluation mode. Every rank calls `between` as
    often."""
    training = network.training
    network.eval()
    batches = loader.batches()
    sampler = loader.stream.sampler
    left = sampler.most_steps if isinstance(sampler, EvalSampler) else 0
    try:
        for batch in batches:
            with torch.no_grad():
                f, z = network(batch.images)
            yield Said(f.float(), z.float(), batch)
            left -= 1
            between(len(batch.index))
        for _ in range(left):  # another rank has a batch more, or fewer that were bad as a whole
            between(0)
    finally:
        batches.close()
        network.train(training)


def infer(
    network: Network,
    loader: Loader,
    *,
    keep_features: bool = False,
    between: Between = nothing,
    look: Look | None = None,
) -> Inferred:
    """This rank's share of the loader's list, in evaluation mode. `look` is shown every batch on the way."""
    device = network.classifier.weight.device
    features: list[Tensor] = []
    logits = [torch.empty(0, network.classifier.out_features, device=device)]  # there may be fewer images than ranks
    labels = [torch.empty(0, dtype=torch.int64, device=device)]
    index = [np.empty(0, dtype=np.int64)]
    for f, z, batch in look_through(network, loader, between):
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


def class_means(network: Network, loader: Loader, between: Between = nothing) -> ClassMeans:
    """Of every labelled image of the loader's list, over all ranks. Summed in float64, so that it does not depend on
    how the list is cut."""
    weight = network.classifier.weight
    sums = torch.zeros(weight.shape[0], weight.shape[1] + 1, dtype=torch.float64, device=weight.device)
    for f, _, batch in look_through(network, loader, between):
        known = batch.labels >= 0
        counted = torch.cat([f, f.new_ones(len(f), 1)], 1).double()
        sums.index_add_(0, batch.labels[known], counted[known])
    sums = global_sum(sums)
    return ClassMeans((sums[:, :-1] / sums[:, -1:].clamp_min(1)).float(), sums[:, -1].long())


class WholeTarget:
    """The pass over the whole target that a method may ask for (`methods.base.Whole`), made when it is first asked;
    and, likewise, one over the source."""

    def __init__(
        self, network: Network, loader: Loader, source: Callable[[], Loader], between: Between = nothing
    ) -> None:
        self._network, self._loader, self._source, self._between = network, loader, source, between

    @cached_property
    def share(self) -> Inferred:
        """This rank's share, with the labels, which no method is to see."""
        return infer(self._network, self._loader, keep_features=True, between=self._between)

    @cached_property
    def source_means(self) -> Tensor:
        return class_means(self._network, self._source(), self._between).means

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
