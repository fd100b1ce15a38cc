"""What a base model is: it owns a step's forward pass, and asks the method for the target's term.

Network and method are one module, so that DistributedDataParallel averages the gradients of all their parameters.

Shapes: B images a domain, K labelled target images, C classes, D feature width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastget.common.timing import UNTIMED, Timer
from fastget.methods.base import Method, Seen, Term
from fastget.networks.network import Network

RESERVED = {"loss", "loss_source", "loss_target"}  # what every run logs


class Step(NamedTuple):
    """What a step trains on, and where in the run it stands."""

    source: Tensor  # (B, 3, H, W)
    labels: Tensor  # (B,) int64
    target: Tensor | None = None  # (B, 3, H, W) without labels; None: none, as in the warm-up
    place: Tensor | None = None  # (B,) int64, the target images' places in their list
    shots: Tensor | None = None  # (K, 3, H, W) target images with labels, for SSDA
    shot_labels: Tensor | None = None  # (K,) int64
    weight: float = 1.0  # w(t)
    progress: float = 0.0  # steps done / all steps


class Losses(NamedTuple):
    """The step's loss and its parts; `seen`, detached, and `term` are for the method's memory."""

    loss: Tensor
    source: Tensor
    seen: Seen | None = None
    term: Term | None = None

    def parts(self) -> dict[str, Tensor]:
        """What is logged, detached."""
        parts = {"loss": self.loss, "loss_source": self.source}
        if self.term is not None:
            parts |= {"loss_target": self.term.loss, **self.term.logged}
        return {name: value.detach() for name, value in parts.items()}


def widened(logits: Tensor) -> Tensor:
    """At least float32: half types are summed in it, float64 stays float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Base(nn.Module):
    """A network and a method. A base model implements `forward(step) -> Losses`."""

    def __init__(self, network: Network, method: Method, label_smoothing: float = 0.0, timer: Timer = UNTIMED) -> None:
        super().__init__()
        self.network, self.method = network, method
        self.label_smoothing, self.timer = label_smoothing, timer

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(widened(logits), labels, label_smoothing=self.label_smoothing)

    def term(self, features: Tensor, logits: Tensor, step: Step) -> tuple[Seen, Term]:
        """The method's term of a batch of the target. Its maths is never half-precision."""
        assert step.place is not None
        seen = Seen(features, widened(logits), step.place, self.network.classifier, step.progress)
        with self.timer.phase("method"), torch.autocast(features.device.type, enabled=False):
            term: Term = self.method(seen)
        if taken := RESERVED & term.logged.keys():
            raise ValueError(f"{type(self.method).__name__} logs {min(taken)!r}, which is a name of the run's own")
        return seen, term

    def without_target(self, supervised: Tensor, source: Tensor) -> Losses:
        """A step that shows no target: yet every parameter takes part in every backward pass, as
        DistributedDataParallel expects."""
        return Losses(supervised + 0 * sum(parameter.sum() for parameter in self.method.parameters()), source)

    @torch.no_grad()
    def again(self, step: Step) -> Seen:
        """The step's target images once more, in evaluation mode."""
        assert step.target is not None
        assert step.place is not None
        training = self.network.training
        self.network.eval()
        try:
            features, logits = self.network(step.target)
        finally:
            self.network.train(training)
        return Seen(features, widened(logits), step.place, self.network.classifier, step.progress)
