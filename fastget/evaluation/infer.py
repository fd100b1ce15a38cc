"""What a network says of a whole list of images. Under several ranks each infers its share, no image twice.

Shapes: N images, n of them on this rank, D feature width, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastget.loading.loader import Loader
from fastget.networks.network import Network


class Inferred(NamedTuple):
    """What a network says of images."""

    features: list[Tensor]  # chunks of (n, D), if kept
    logits: Tensor  # (n, C)
    labels: Tensor  # (n,)
    place: NDArray[np.int64]  # (n,) into the list


Look = Callable[[Tensor, Tensor, Tensor, NDArray[np.int64]], None]  # features, logits, labels, places of a batch


@torch.no_grad()
def infer(network: Network, loader: Loader, *, keep_features: bool = False, look: Look | None = None) -> Inferred:
    """This rank's share of the loader's list, in evaluation mode. `look` is shown every batch on the way."""
    training = network.training
    network.eval()
    device = network.classifier.weight.device
    features: list[Tensor] = []
    logits = [torch.empty(0, network.classifier.out_features, device=device)]  # there may be fewer images than ranks
    labels = [torch.empty(0, dtype=torch.int64, device=device)]
    index = [np.empty(0, dtype=np.int64)]
    for batch in loader.batches():
        f, z = network(batch.images)
        if keep_features:
            features.append(f.float())
        if look is not None:
            look(f, z, batch.labels, batch.index)
        logits.append(z.float())
        labels.append(batch.labels)
        index.append(batch.index)
    network.train(training)
    return Inferred(features, torch.cat(logits), torch.cat(labels), np.concatenate(index))


class WholeTarget:
    """The pass over the whole target that a method may ask for (`methods.base.Whole`), made when it is first asked."""

    def __init__(self, network: Network, loader: Loader) -> None:
        self._network, self._loader = network, loader

    @cached_property
    def share(self) -> Inferred:
        """This rank's share, with the labels, which no method is to see."""
        return infer(self._network, self._loader, keep_features=True)

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
