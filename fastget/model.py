"""One step's forward pass: the network on both domains, then Eq. (11).

Source and target go through the network in two calls, so that batch-norm statistics stay per domain.
Network and GeT are one module, so that DistributedDataParallel averages the gradients of all their parameters.

Shapes: B images a domain, C classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from fastget.get import GeT, Output
from fastget.network import Network
from fastget.profiling import phase


class Losses(NamedTuple):
    """The step's loss and its parts; `features` and `out` are for GeT's memory."""

    loss: Tensor
    source: Tensor
    features: Tensor | None = None
    out: Output | None = None

    def parts(self) -> dict[str, Tensor]:
        """What is logged, detached."""
        parts = {"loss": self.loss, "loss_source": self.source}
        if self.out is not None:
            out = self.out
            parts |= {"loss_target": out.loss, "loss_g": out.loss_g, "loss_f": out.loss_f}
            parts |= {"structure_g": out.structure_g, "structure_f": out.structure_f}
        return {name: value.detach() for name, value in parts.items()}


class Adaptation(nn.Module):
    """The network, and GeT unless the method is source-only."""

    def __init__(self, network: Network, get: GeT | None, label_smoothing: float) -> None:
        super().__init__()
        self.network, self.get = network, get
        self.label_smoothing = label_smoothing

    def forward(
        self,
        source: Tensor,  # (B, 3, H, W)
        labels: Tensor,  # (B,) int64
        target: Tensor | None = None,  # (B, 3, H, W); None: source alone, as in the warm-up
        weight: float = 1.0,  # w(t)
    ) -> Losses:
        """Eq. (11): source cross-entropy + w(t) * GeT's target term."""
        with phase("forward"):
            _, logits = self.network(source)
        source_loss = F.cross_entropy(logits.float(), labels, label_smoothing=self.label_smoothing)
        if self.get is None:
            return Losses(source_loss, source_loss)
        if target is None:
            # every parameter takes part in every backward pass, as DistributedDataParallel expects
            return Losses(source_loss + 0 * self.get.mu_f.sum(), source_loss)
        with phase("forward"):
            features, target_logits = self.network(target)
        with phase("E/C-step"):
            out: Output = self.get(features, self.network.classifier.weight, labels=target_logits.detach().argmax(1))
        return Losses(source_loss + weight * out.loss, source_loss, features.detach(), out)
