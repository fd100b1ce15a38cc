"""What a run makes of the target: its evaluations, what the model was worth before it adapted, and the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fastget.bases.base import Base
from fastget.common.ranks import Ranks
from fastget.data.lists import ImageList
from fastget.evaluation.classes import Classes, Tally, estimate, tally, with_latest
from fastget.evaluation.infer import Between, Inferred, Look, WholeTarget, infer, nothing
from fastget.evaluation.sample import Sample, Sampled, quality
from fastget.evaluation.score import Evaluation, assess
from fastget.evaluation.verdict import Finding, collapsed, in_effect, of_accuracy, of_agreement, of_coverage, untold
from fastget.loading.loader import Loader
from fastget.methods.base import Seen
from fastget.training.build import Loaders


class Assessor:
    """Looks at the target with the run's model, and remembers what later evaluations are compared with."""

    def __init__(
        self,
        model: Base,
        loaders: Loaders,
        target: ImageList,
        watch: int,  # images of the sample that reports look at
        ranks: Ranks,
        dtype: torch.dtype,  # that the network runs in
    ) -> None:
        self.network, self.method = model.network, model.method
        self.loaders, self.target, self.ranks, self.dtype = loaders, target, ranks, dtype
        self.before: dict[str, Any] | None = None  # metrics of the model at the end of the warm-up, once it is reached
        self.tallies: list[Tally] = []  # of the last evaluations since then, or of all if it never comes
        self.sample = Sample(len(target), watch, ranks)
        self.sampled: Sampled | None = None  # at the last evaluation, and
        self.sampled_before: Sampled | None = None  # at the end of the warm-up: until it is written

    def start(self, whole: WholeTarget, steps_done: int, *, look: bool, between: Between = nothing) -> None:
        """What the model that was not adapted yet makes of the target, for the record: by the pass that the method
        made, or, where it made none, by one of its own if it is to `look`."""
        self.tallies = []  # the warm-up's say nothing of the adapted model
        if whole.asked:
            share = whole.share
            self.sample.add_all(share)
        elif look:
            share = self._infer(self.loaders.evaluation, between, self.sample.add)
        else:
            return
        found = assess(share, self.ranks)
        covered = in_effect(self._histogram(found))
        self.before = {"step": steps_done, **found.metrics(), "classes_in_effect": covered}
        self.sampled_before = self.sample.read()

    def evaluate(self, steps_done: int, last: bool, between: Between = nothing) -> Evaluation:
        """The model on the target, or on a draw of it before the last step, and on SSDA's validation list where there
        is one."""
        share = self._infer(self.loaders.evaluation if last else self.loaders.interim, between, self.sample.add)
        result = assess(share, self.ranks)
        self.tallies = with_latest(self.tallies, tally(steps_done, result))
        self.sampled = self.sample.read()
        drawn, validation = self.loaders.draw, self.loaders.validation
        if drawn is not None and last:  # what is compared over the run is compared on the same images
            chosen = np.zeros(len(self.target), dtype=np.bool_)
            chosen[drawn] = True
            result = dataclasses.replace(result, on_draw=assess(share.among(chosen), self.ranks))
        elif drawn is not None:
            result = dataclasses.replace(result, of=len(self.target))
        if validation is not None:
            result = dataclasses.replace(result, validation=assess(self._infer(validation, between), self.ranks))
        return result

    def _infer(self, loader: Loader, between: Between, look: Look | None = None) -> Inferred:
        return infer(self.network, loader, between=between, look=look, dtype=self.dtype)

    def _histogram(self, found: Evaluation) -> list[int]:
        """(C,) how many images were taken for each class."""
        histogram: list[int] = np.bincount(found.predictions, minlength=len(self.target.classes)).tolist()
        return histogram

    def verdict(self, final: Evaluation) -> list[Finding]:
        """What is known to be wrong with the final model, which was evaluated last."""
        before = self.before or {}
        covered = before.get("classes_in_effect")  # checkpoints of earlier versions have none
        present = sum(accuracy is not None for accuracy in final.per_class)
        return [
            *of_agreement(self.method.agreement()),
            *of_coverage(self._histogram(final), covered, self.method.partial),
            *of_accuracy(final.accuracy, final.mean_class_accuracy, before.get("accuracy"), present, len(final.index)),
        ]

    def classes(self, final: Evaluation, verdict: Sequence[Finding] = ()) -> Classes:
        """What the target is made of, by the final model, which was evaluated last; as far as it can be told."""
        labels = self.target.labels[final.index] if self.target.labelled else None
        draw = None if final.on_draw is None else tally(self.tallies[-1].step, final.on_draw)
        found = estimate(self.target.classes, self.tallies, labels, draw)
        return found.doubted(untold(self.method.agreement()), collapsed(verdict))

    def pseudo_labels(self, started: bool, progress: float) -> dict[str, dict[str, float | int | None]]:
        """What the labels of a method that has `started` are worth on the last evaluation's sample, by name, and the
        network's own. Labels of the target are compared with, after the method has given its own."""
        if self.sampled is None:
            return {}
        features, logits, truth, place = self.sampled
        given = {"network": (logits.argmax(1), logits.softmax(1).max(1).values)}
        if started:
            classifier = self.network.classifier
            f, z, index = (part.to(classifier.weight.device) for part in (features, logits, place))
            found = self.method.pseudo_labels(Seen(f, z, index, classifier, progress))
            given |= {name: (y.cpu(), sure.cpu()) for name, (y, sure) in found.items()}
        classes = len(self.target.classes)
        return {name: quality(y, sure, truth, classes) for name, (y, sure) in given.items()}
