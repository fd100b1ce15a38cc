"""MixMatch as a base model (Berthelot et al., NeurIPS 2019), as ATDOC runs it on two domains.

Two views of each target image get one guessed label; labelled and guessed images are mixed with one another, and the
network learns the mixed labels of the mixed images: by cross-entropy where the first of the pair was labelled, by
squared error where it was guessed. A method with labels replaces the guess by its own, half for each view.

Where this differs from ATDOC's code: all mixed images go through the network in one call (there in three interleaved
parts, which also hold all kinds), and SSDA's labelled target images count as labelled (there they get the squared
error). What is drawn in a step depends on the run's seed and the step alone, and the batch is the global one: any
number of ranks mixes the same pairs.

Shapes: B images a domain, K labelled target images, C classes.
"""

from __future__ import annotations

import zlib
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fastget.bases.base import SECOND_LOOK, Base, Call, Losses, Need, Step, widened
from fastget.bases.settings import MixMatchSettings
from fastget.common.ranks import global_rows, this_rank
from fastget.common.scrambled import scrambled
from fastget.methods.base import Seen, Term


def mixmatch_guess(
    z1: Tensor,  # (B, C) logits of one view
    z2: Tensor,  # (B, C) of another view of the same images
    temperature: float = 0.5,
) -> Tensor:
    """(B, C) p^(1 / temperature) / its row sum, p the mean of the two views' softmaxes. A constant."""
    return torch.softmax(log_mean(z1.detach(), z2.detach()) / temperature, 1)


def log_mean(z1: Tensor, z2: Tensor) -> Tensor:
    """(B, C) the logarithm of p1 + p2, twice the mean probabilities of two views."""
    return torch.logaddexp(torch.log_softmax(z1, 1), torch.log_softmax(z2, 1))


class MixMatch(Base):
    """Cross-entropy of the labelled part + mixmatch.weight * t / T * squared error of the guessed part."""

    needs: ClassVar[frozenset[Need]] = frozenset({"target", "second view"})
    config: MixMatchSettings

    def forward(self, step: Step) -> Losses:
        views = two_views(step)
        guess, seen, kept = self.guess(step, *self.look(step, "guess"))
        known = [batch for batch in (step.source, step.shots) if batch is not None]
        labels = [self.one_hot(batch.labels) for batch in known]
        labelled = sum(map(len, labels))
        x, y = self.mix(step, [*(batch.images for batch in known), *views], [*labels, guess, guess])
        _, logits = self.see(x, "mixed")
        log_p = torch.log_softmax(widened(logits), 1)
        source = -(y[:labelled] * log_p[:labelled]).sum(1).mean()
        squared = (log_p[labelled:].exp() - y[labelled:]).square().mean()
        loss = source + self.config.weight * step.progress * squared + self.idle()
        if seen is None:
            return Losses(loss, source, logged={"loss_target": squared})
        return Losses(loss, source, seen, Term(squared, kept=kept))

    @classmethod
    def calls(cls, source: int, target: int, shots: int) -> tuple[Call, ...]:
        """Both views are looked at for the guess, and learned from when they are mixed."""
        return (*cls.calls_again(target), Call(source + shots + 2 * target, True))

    @classmethod
    def calls_again(cls, target: int) -> tuple[Call, ...]:
        return (Call(target, False),) * 2

    @torch.no_grad()
    def look(self, step: Step, what: str) -> tuple[Seen, Seen]:
        """At the two views, in the network's own mode: in training batch statistics count, and are counted."""
        first, second = (self.seen(*self.see(view, what), step) for view in two_views(step))
        return first, second

    @torch.no_grad()
    def guess(self, step: Step, first: Seen, second: Seen) -> tuple[Tensor, Seen | None, Any]:
        """(B, C) the labels of the target's images, the method's once it has started; then also what its memory learns
        from, both views as one, and what it keeps of them."""
        with torch.autocast(first.features.device.type, enabled=False):
            with self.timer.phase("base model"):
                guess = mixmatch_guess(first.logits, second.logits, self.config.temperature)
            if not step.adapting:
                return guess, None, None
            with self.timer.phase("method"):
                labels = [self.method.labels(view) for view in (first, second)]
                own = (self.one_hot(labels[0]) + self.one_hot(labels[1])) / 2
                known = (labels[0] >= 0) & (labels[1] >= 0)  # a memory may have none yet: the guess stands
                both = mean_of(first, second)
                return torch.where(known[:, None], own.to(guess.dtype), guess), both, self.method.keep(both)

    def mix(self, step: Step, images: list[Tensor], labels: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Each row of this rank with the row of the global batch that the step's permutation gives it."""
        pooled = [global_rows(part) for part in images], [global_rows(part) for part in labels]
        counts = [len(part) for part in pooled[0]]
        share, order = draw(step, sum(counts), self.config.alpha, images[0].device)
        starts = [sum(counts[:i]) + this_rank() * len(part) for i, part in enumerate(images)]
        partner = torch.cat([order[start : start + len(part)] for start, part in zip(starts, images, strict=True)])
        x, y = (share * torch.cat(own) + (1 - share) * torch.cat(every)[partner]
                for own, every in zip((images, labels), pooled, strict=True))  # fmt: skip
        return x, y

    def one_hot(self, labels: Tensor) -> Tensor:
        """(B,) -> (B, C); a label of -1 is a row of zeros."""
        classes = torch.arange(self.network.classifier.out_features, device=labels.device)
        return (labels[:, None] == classes).to(self.network.classifier.weight.dtype)

    def look_again(self, step: Step) -> Seen:
        return mean_of(*self.look(step, SECOND_LOOK))


def two_views(step: Step) -> tuple[Tensor, Tensor]:
    """(B, 3, H, W) each, of the target's images."""
    assert step.target is not None
    assert step.target.second is not None
    return step.target.images, step.target.second


def mean_of(first: Seen, second: Seen) -> Seen:
    """Two views as one: mean features, and the logarithm of the mean probabilities, but for a constant, as logits."""
    log_p = log_mean(first.logits, second.logits)
    return Seen((first.features + second.features) / 2, log_p, first.index, first.classifier, first.progress)


def draw(step: Step, rows: int, alpha: float, device: torch.device) -> tuple[float, Tensor]:
    """The share of a row itself in its mixture, at least a half, and a permutation of all rows, (rows,) int64, made on
    the device and the same on any."""
    key = np.array([step.seed, zlib.crc32(b"mixmatch")], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, step.number, 0], np.uint64)))
    share = float(generator.beta(alpha, alpha))
    start = int(generator.integers(-(2**63), 2**63))
    return max(share, 1 - share), torch.argsort(scrambled(torch.arange(rows, device=device), start))
