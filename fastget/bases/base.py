"""What a base model is: it owns a step's forward pass, and asks the method for the target's term.

Network and method are one module, so that DistributedDataParallel averages the gradients of all their parameters.

Shapes: B images a domain, K labelled target images, C classes, D feature width.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastget.common.timing import UNTIMED, Timer
from fastget.loading.stream import Batch
from fastget.methods.base import Method, Seen, Term
from fastget.networks.network import Network

SECOND_LOOK = "second look"
RESERVED = {"loss", "loss_source", "loss_target", "loss_domain"}  # what runs log
Need = Literal[
    "target",  # batches of target images from the first step on, also in a method's warm-up
    "second view",  # each target image cropped and mirrored twice
]


class Call(NamedTuple):
    """Images through the network."""

    rows: int
    learned: bool  # from: a backward pass goes through it too


class Step(NamedTuple):
    """What a step trains on, and where in the run it stands."""

    source: Batch | None  # B images; None: the step of the method's term alone, or one of a source-free method
    target: Batch | None = None  # B images without their labels; None: none, as in the warm-up
    shots: Batch | None = None  # K target images with labels, for SSDA
    weight: float | Tensor = 1.0  # w(t); a scalar on the device where the step is captured, and so is
    progress: float | Tensor = 0.0  # steps done / all steps of the run, or of a source-free method's phase
    adapting: bool = True  # whether the method has started; what the base model does on its own goes on without it
    seed: int = 0  # of the run, and
    number: int = 0  # the step's: what is drawn in a step is drawn from these two

    @property
    def batches(self) -> list[Batch]:
        """Those that there are."""
        return [batch for batch in (self.source, self.target, self.shots) if batch is not None]


class Losses(NamedTuple):
    """The step's loss and its parts; `seen`, detached, and `term` are for the method's memory."""

    loss: Tensor
    source: Tensor | None = None
    seen: Seen | None = None
    term: Term | None = None
    logged: dict[str, Tensor] = {}  # noqa: RUF012  # a default, never changed; what the base model adds

    def parts(self) -> dict[str, Tensor]:
        """What is logged, detached."""
        parts = {"loss": self.loss}
        if self.source is not None:
            parts |= {"loss_source": self.source}
        if self.term is not None:
            parts |= {"loss_target": self.term.loss, **self.term.logged}
        return {name: value.detach() for name, value in {**parts, **self.logged}.items()}


def widened(logits: Tensor) -> Tensor:
    """At least float32: half types are summed in it, float64 stays float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Base(nn.Module):
    """A network and a method. A base model implements `forward(step) -> Losses`."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    capturable: ClassVar[bool] = False  # whether a step can be a CUDA graph: as Method.capturable

    def __init__(
        self,
        network: Network,
        method: Method,
        label_smoothing: float = 0.0,
        timer: Timer = UNTIMED,
        config: Any = None,  # the base model's own section
        pooled: bool = False,  # whether all labelled images share one mean of the cross-entropy
    ) -> None:
        super().__init__()
        self.pooled = pooled
        self.network, self.method, self.config = network, method, config
        self.label_smoothing, self.timer = label_smoothing, timer

    @classmethod
    def calls(cls, source: int, target: int, shots: int) -> tuple[Call, ...]:
        """What a step sends through the network, counted before it is made: of so many source images, target images
        and labelled target images."""
        return tuple(Call(rows, True) for rows in (source, target + shots) if rows)

    @classmethod
    def calls_again(cls, target: int) -> tuple[Call, ...]:
        """And where the method looks at the target's images once more."""
        return (Call(target, False),)

    def parts(self, step: Step) -> tuple[Step, ...]:
        """What the optimizer takes a step each for: all at once, or, for a method that asks for it, its term alone."""
        if step.target is None or "own step" not in self.method.needs:
            return (step,)
        return step._replace(target=None), step._replace(source=None, shots=None)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(widened(logits), labels, label_smoothing=self.label_smoothing)

    def see(self, images: Tensor, what: str) -> tuple[Tensor, Tensor]:
        """Images through the network: features and logits. `what` they are is for the account of a step's cost."""
        self.timer.images(what, len(images), torch.is_grad_enabled() and self.network.trains_backbone)
        with self.timer.phase(SECOND_LOOK if what == SECOND_LOOK else "forward"):
            features, logits = self.network(images)
        return features, logits

    def seen(self, features: Tensor, logits: Tensor, step: Step) -> Seen:
        """A batch of the target as a method sees it."""
        assert step.target is not None
        return Seen(features, widened(logits), step.target.place, self.network.classifier, step.progress)

    def term(self, seen: Seen) -> Term:
        """The method's term of a batch of the target. Its maths is never half-precision."""
        features = seen.features
        with self.timer.phase("method"), torch.autocast(features.device.type, enabled=False):
            term: Any = self.method(seen)
        if not isinstance(term, Term):
            name, got = type(self.method).__name__, type(term).__name__
            raise ValueError(f"{name}.forward returned a {got}; expected a Term, such as Term(loss)")
        if taken := RESERVED & term.logged.keys():
            raise ValueError(f"{type(self.method).__name__} logs {min(taken)!r}, which is a name of the run's own")
        return term

    def idle(self) -> Tensor:
        """0, of the method's parameters, for a step without its term: every parameter takes part in every backward
        pass, as DistributedDataParallel expects."""
        return 0 * sum((parameter.sum() for parameter in self.method.parameters()), self.zero())

    def zero(self) -> Tensor:
        return self.network.classifier.weight.new_zeros(())

    @torch.no_grad()
    def again(self, step: Step) -> Seen:
        """The step's target images once more, in evaluation mode."""
        training = self.network.training
        self.network.eval()
        try:
            return self.look_again(step)
        finally:
            self.network.train(training)

    def look_again(self, step: Step) -> Seen:
        assert step.target is not None
        return self.seen(*self.see(step.target.images, SECOND_LOOK), step)
