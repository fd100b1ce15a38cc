"""What a method is: it sees a batch of the target, and adds a term to the loss.

A base model (`fastget.bases`) runs the network and hands a `Seen` to the method; its `Term` joins the source's
cross-entropy, multiplied by w(t); after the optimizer's step the method may bring its memory up to date. Everything
but `forward` is a hook that does nothing here.

Shapes: B target images of this rank's batch, D feature width, C classes, N target images in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor, nn

from fastget.common.agreement import Agreement
from fastget.common.fields import opt
from fastget.methods.settings import Settings

# all that a method's file needs
__all__ = [
    "Agreement",
    "Extra",
    "Labelled",
    "Method",
    "Need",
    "Seen",
    "Settings",
    "Steps",
    "Task",
    "Term",
    "Whole",
    "opt",
]

Need = Literal[
    "target",  # batches of target images; without it the method never sees one
    "labelled",  # beside them the step's labelled images: Seen.source, Seen.shots
    "warm-up",  # steps before it starts: train.warmup_steps is `warm_share` of all unless it is set
    "own step",  # its term has an optimizer's step of its own, after that of the labelled images
    "source-free",  # the warm-up is a phase of its own, on the source; after it no source image is read
]
Frozen = Literal["classifier"]
Extra = Literal[
    "whole target",  # `start` asks for all of it
    "whole source",  # and for the source's means
    "each epoch",  # every call of `start_epoch` asks for the whole target
    "second look",  # after_step calls `again`
]


@dataclass(frozen=True)
class Task:
    """What a method is built for."""

    num_classes: int  # C
    feature_dim: int  # D
    target_images: int  # N
    setting: str = "uda"  # the protocol, as data.setting has it


class Labelled(NamedTuple):
    """Labelled images of a step, as the network sees them, with gradient."""

    features: Tensor  # (B', D)
    logits: Tensor  # (B', C)
    labels: Tensor  # (B',) int64


@dataclass(frozen=True)
class Seen:
    """A batch of the target, as the network sees it. With several ranks it is this rank's part of the global batch:
    sums over the batch are `fastget.common.ranks.global_sum`'s."""

    features: Tensor  # (B, D), after the bottleneck
    logits: Tensor  # (B, C)
    index: Tensor  # (B,) int64, each image's place in the target's list, on the device
    classifier: nn.Linear  # W (C, D), and b (C,) unless it is a cosine head
    progress: float | Tensor  # steps done / all of the run's or phase's; a scalar on the device in a captured step
    source: Labelled | None = None  # in `forward` alone, and None unless the method's `needs` has "labelled"
    shots: Labelled | None = None  # likewise, SSDA's labelled target images; None in other settings

    def detached(self) -> Seen:
        """For the method's memory: without gradient, and without the labelled images."""
        f, z = self.features.detach(), self.logits.detach()
        return replace(self, features=f, logits=z, source=None, shots=None)


class Term(NamedTuple):
    """What a method adds to the loss."""

    loss: Tensor  # (), multiplied by w(t) outside
    logged: dict[str, Tensor] = {}  # noqa: RUF012  # a default, never changed; its parts, by names such as loss_g
    kept: Any = None  # handed to after_step


class Steps(Protocol):
    """A run's length, in steps."""

    @property
    def epoch_steps(self) -> int: ...

    @property
    def max_steps(self) -> int: ...

    @property
    def warmup_steps(self) -> int: ...


class Whole(Protocol):
    """The whole target through the network in evaluation mode, this rank's share of it. It costs a pass over the
    target when it is first asked for, and `source_means` one over the source. No label of the target is in it."""

    @property
    def features(self) -> Sequence[Tensor]: ...  # chunks of (n, D)

    @property
    def logits(self) -> Tensor: ...  # (n, C)

    @property
    def index(self) -> Tensor: ...  # (n,) places in the target's list

    @property
    def classifier(self) -> nn.Linear: ...

    @property
    def source_means(self) -> Tensor: ...  # (C, D) over all ranks, zeros for a class without images


class Method(nn.Module):
    """The base of all methods. Its parameters go to the optimizer, its buffers to the checkpoint."""

    Config: ClassVar[type[Settings]]  # its section of the configuration
    needs: ClassVar[frozenset[Need]] = frozenset({"target"})
    warm_share: ClassVar[float] = 0.3  # of the steps, for one that needs a warm-up
    frozen: ClassVar[frozenset[Frozen]] = frozenset()  # what of the network does not move once a source-free one starts
    advice: ClassVar[str] = ""  # what to try when the loss is no number, beside a lower learning rate

    # Whether forward and after_step can be captured in a CUDA graph (train.graph): they read nothing back from the
    # device, make no shape of values, change state in place alone, and use no number of Python's that changes.
    capturable: ClassVar[bool] = False

    def __init__(self, config: Any, task: Task) -> None:
        super().__init__()
        self.config, self.task = config, task

    @property
    def extra(self) -> frozenset[Extra]:
        """What it has the network look at beside its batches: a run counts its image passes before it makes them."""
        return frozenset()

    @property
    def partial(self) -> bool:
        """Whether the user has declared that the target lacks classes: few classes in the predictions are no collapse
        then."""
        return self.task.setting == "pda"

    @classmethod
    def keeps(cls, config: Any, task: Task, ranks: int) -> str:
        """A line about the memory that it is going to take, printed before a run builds it; empty: not worth one."""
        return ""

    def period(self, plan: Steps) -> int | None:
        """Steps from one call of `start_epoch` to the next, counted from the method's first one; None: it is called at
        every epoch's first, counted from the run's."""
        return None

    def forward(self, seen: Seen) -> Term:
        """The target's term. What is not to carry a gradient is detached in it."""
        raise NotImplementedError  # the one part of a method that is not optional: register() looks for it

    def labels(self, seen: Seen) -> Tensor:
        """(B,) int64 hard labels of the target's images, -1 where there is none yet: for a base model that trains on
        labels. A method that has it says so in its Config: gives = frozenset({"term", "labels"})."""
        raise NotImplementedError  # such a base model is refused for a method without it, before anything is loaded

    def keep(self, seen: Seen) -> Any:
        """What after_step finds in its term's `kept`, where a base model takes labels and no term is made."""

    def start(self, whole: Whole) -> None:
        """Once, after the warm-up, before the first batch of the target."""

    def start_epoch(self, whole: Whole) -> None:
        """At the first step of every epoch, or every `period` steps, and at the first step of all, after `start`."""

    def after_step(self, seen: Seen, term: Term, skip: Tensor | None, again: Callable[[], Seen]) -> None:
        """After the optimizer's step: memories. `seen` is detached. Where `skip`, on the device, is not 0, the step was
        skipped (float16's overflow) and a memory must stay as it is. `again()` runs the same target images through the
        network once more, in evaluation mode, which costs an image pass."""

    def check(self) -> None:
        """At log intervals, where waiting for the device is fine: ValueError says what is wrong and what to try. Every
        rank is asked, and has to say the same."""

    def agreement(self) -> Agreement | None:
        """Of a method that has two labellers for the target: how far they agree, after `start`. The run says so where
        it is too little (docs/run.md). Every rank is asked, and has to say the same."""
        return None

    def pseudo_labels(self, seen: Seen) -> dict[str, tuple[Tensor, Tensor]]:
        """What it would train on, by name, for some of the target in evaluation mode: (B,) int64 labels, -1 for none,
        and (B,) the confidence in each. For the run's report, which compares them with labels that no method sees.
        Rank 0 alone is asked, of all ranks' images: it must not wait for the others."""
        return {}

    def figures(self) -> dict[str, Tensor]:
        """What TensorBoard shows of the state at an evaluation, by tag: numbers, and (C,) shares of the classes, which
        are drawn beside the target's labels where these are known. Every rank is asked, rank 0's are shown."""
        return {}
