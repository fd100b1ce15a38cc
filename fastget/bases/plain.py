"""One step's forward pass: the network on both domains, then Eq. (11).

Source and target go through the network in two calls, so that batch-norm statistics stay per domain.
Network and GeT are one module, so that DistributedDataParallel averages the gradients of all their parameters.

Shapes: B images a domain, C classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastget.methods.get import GeT, Output
from fastget.networks.network import Network
from fastget.training.profiling import phase


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
        target: Tensor | None = None,  # (B, 3, H, W) without labels; None: none, as in the warm-up
        shots: Tensor | None = None,  # (K, 3, H, W) target images with labels, for SSDA
        shot_labels: Tensor | None = None,  # (K,) int64
        weight: float = 1.0,  # w(t)
    ) -> Losses:
        """Eq. (11): cross-entropy of the source, and of SSDA's labelled target images, + w(t) * GeT's target term."""
        with phase("forward"):
            _, logits = self.network(source)
        source_loss = self._cross_entropy(logits, labels)
        supervised = source_loss
        images = [part for part in (target, shots) if part is not None]
        if images:
            with phase("forward"):  # both kinds of target image in one call: they are one domain
                features, target_logits = self.network(torch.cat(images) if len(images) > 1 else images[0])
        if shots is not None and shot_labels is not None:
            supervised = source_loss + self._cross_entropy(target_logits[-len(shots) :], shot_labels)
        if self.get is None:
            return Losses(supervised, source_loss)
        if target is None:
            # every parameter takes part in every backward pass, as DistributedDataParallel expects
            return Losses(supervised + 0 * self.get.mu_f.sum(), source_loss)
        features, head = features[: len(target)], target_logits[: len(target)].detach().argmax(1)
        with phase("E/C-step"):
            out: Output = self.get(features, self.network.classifier.weight, labels=head)
        return Losses(supervised + weight * out.loss, source_loss, features.detach(), out)

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # float64 stays float64, as in GeT
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
