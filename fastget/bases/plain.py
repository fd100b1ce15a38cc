"""The plain base model: cross-entropy of the source, and the method's term (METHOD.md, Eq. (11)).

Source and target go through the network in two calls, so that batch-norm statistics stay per domain.
"""

from __future__ import annotations

import torch

from fastget.bases.base import Base, Losses, Step


class Plain(Base):
    """Eq. (11): cross-entropy of the source, and of SSDA's labelled target images, + w(t) * the method's term."""

    def forward(self, step: Step) -> Losses:
        with self.timer.phase("forward"):
            _, logits = self.network(step.source)
        source = self.cross_entropy(logits, step.labels)
        supervised = source
        images = [part for part in (step.target, step.shots) if part is not None]
        if images:
            with self.timer.phase("forward"):  # both kinds of target image in one call: they are one domain
                features, target_logits = self.network(torch.cat(images) if len(images) > 1 else images[0])
        if step.shots is not None and step.shot_labels is not None:
            supervised = source + self.cross_entropy(target_logits[-len(step.shots) :], step.shot_labels)
        if step.target is None:
            return self.without_target(supervised, source)
        rows = len(step.target)
        seen, term = self.term(features[:rows], target_logits[:rows], step)
        return Losses(supervised + step.weight * term.loss, source, seen.detached(), term)
