"""The plain base model: cross-entropy of the source, and the method's term (METHOD.md, Eq. (11)).

Source and target go through the network in two calls, so that batch-norm statistics stay per domain; with plain.joint
in one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fastget.bases.base import Base, Losses, Step, widened
from fastget.bases.settings import PlainSettings
from fastget.loading.stream import Batch
from fastget.methods.base import Labelled


class Domain(NamedTuple):
    """A domain's batch, as the network sees it."""

    features: Tensor  # (B, D)
    logits: Tensor  # (B, C)


def labelled(domain: Domain | None, batch: Batch | None) -> Labelled | None:
    """A batch with labels as a method sees it."""
    return None if domain is None or batch is None else Labelled(domain.features, widened(domain.logits), batch.labels)


class Plain(Base):
    """Eq. (11): cross-entropy of the source, and of SSDA's labelled target images, + w(t) * the method's term."""

    capturable = True

    def forward(self, step: Step) -> Losses:
        source, target = self.domains(step)
        supervised, on_source = self.supervised(step, source, target)
        return self.with_term(step, source, target, Losses(supervised, on_source))

    def domains(self, step: Step) -> tuple[Domain | None, Domain | None]:
        """The source, and the target with its labelled images last: they are one domain, in one call."""
        images = [part.images for part in (step.target, step.shots) if part is not None]
        if images and step.source is not None and isinstance(self.config, PlainSettings) and self.config.joint:
            rows = len(step.source.labels)
            features, logits = self.see(torch.cat([step.source.images, *images]), "source and target")
            return Domain(features[:rows], logits[:rows]), Domain(features[rows:], logits[rows:])
        source = None if step.source is None else Domain(*self.see(step.source.images, "source"))
        target = Domain(*self.see(torch.cat(images) if len(images) > 1 else images[0], "target")) if images else None
        return source, target

    def supervised(self, step: Step, source: Domain | None, target: Domain | None) -> tuple[Tensor, Tensor | None]:
        """The cross-entropy of all labelled images, and the source's alone."""
        if source is None or step.source is None:
            return self.zero(), None
        on_source = self.cross_entropy(source.logits, step.source.labels)
        if target is None or step.shots is None:
            return on_source, on_source
        rows, shots = len(step.source.labels), len(step.shots.labels)
        on_target = self.cross_entropy(target.logits[-shots:], step.shots.labels)
        if not self.pooled:
            return on_source + on_target, on_source
        return (rows * on_source + shots * on_target) / (rows + shots), on_source

    def with_term(self, step: Step, source: Domain | None, target: Domain | None, losses: Losses) -> Losses:
        """The losses and the method's term, if it has started."""
        if step.target is None or target is None or not step.adapting:
            return losses._replace(loss=losses.loss + self.idle())
        rows = len(step.target.labels)
        seen = self.seen(target.features[:rows], target.logits[:rows], step)
        if "labelled" in self.method.needs:
            shots = Domain(target.features[rows:], target.logits[rows:])
            seen = replace(seen, source=labelled(source, step.source), shots=labelled(shots, step.shots))
        term = self.term(seen)
        return losses._replace(loss=losses.loss + step.weight * term.loss, seen=seen.detached(), term=term)
