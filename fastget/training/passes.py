"""The image passes that a run is going to make, counted before its first step.

As in `cost`: an image that is learned from counts as three, one that is only looked at as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastget.bases.base import Base
from fastget.config import Config
from fastget.training.build import shots_of
from fastget.training.cost import LEARNED, LOOKED_AT
from fastget.training.engine import Engine
from fastget.training.schedule import Plan


@dataclass(frozen=True)
class Passes:
    """Of a whole run."""

    plan: Plan
    learned: int  # what an image counts as that is learned from: with a frozen backbone it is looked at
    training: int
    start: int  # of the method, after the warm-up: over the whole target, and over the source if it asks for that
    interim: int  # images of an evaluation before the last one
    target: int  # and of the last one
    validation: int  # SSDA's list, in every evaluation

    def evaluations_after(self, step: int) -> int:
        """How many evaluations are made after this step is done with its own."""
        plan = self.plan
        last = plan.max_steps % plan.eval_every != 0
        return plan.max_steps // plan.eval_every - step // plan.eval_every + last if step < plan.max_steps else 0

    def of_evaluation(self, last: bool) -> int:
        """Images of one."""
        return (self.target if last else self.interim) + self.validation

    def evaluation_after(self, step: int) -> int:
        """Images of all evaluations that are made after this step is done with its own."""
        count = self.evaluations_after(step)
        return (count - 1) * self.of_evaluation(False) + self.of_evaluation(True) if count else 0

    @property
    def evaluation(self) -> int:
        return self.evaluation_after(0)

    @property
    def looked_at(self) -> int:
        """All that is no training."""
        return self.evaluation + self.start

    @property
    def share(self) -> float:
        """Of the evaluations in the whole run."""
        return self.evaluation / (self.training + self.looked_at)

    def words(self) -> str:
        """For the log's first lines."""
        total, count = self.training + self.looked_at, self.evaluations_after(0)
        threefold = "; an image learned from counts as three" if self.learned == LEARNED else ""
        parts = [("training", self.training, f"{self.plan.max_steps:,} steps{threefold}")]
        if self.start:
            parts.append(("the method's start", self.start, ""))
        before = f"{count - 1} on {self.interim:,} of {self.target:,} target images, the last on all"
        parts.append(("evaluation", self.evaluation, before if self.interim < self.target else f"{count} of them"))
        said = [
            f"{what} {passes:,} ({100 * passes / total:.0f} %{f', {more}' if more else ''})"
            for what, passes, more in parts
        ]
        return f"plan: {total:,} image passes: {'; '.join(said)}"


def planned(engine: Engine) -> Passes:
    """Of this run, from its first step."""
    sizes = {role: len(images) for role, images in engine.domains.lists().items()}
    return passes_of(engine, engine.config, engine.plan, sizes)


def passes_of(engine: Engine, config: Config, plan: Plan, sizes: Mapping[str, int]) -> Passes:
    """Of the engine's model in a run of this configuration and plan, on lists of so many images."""
    extra, target = engine.method.extra, sizes["target"]
    starts = "target" in engine.method.needs
    start = target if starts and (plan.warmup_steps or "whole target" in extra) else 0
    start += sizes["source"] if starts and "whole source" in extra else 0
    learned = LEARNED if engine.network.trains_backbone else LOOKED_AT
    training = of_training(engine.model, plan, config.train.batch_size, "labelled_target" in sizes, learned)
    interim = config.train.interim_images(target)
    return Passes(plan, learned, training, start, interim, target, sizes.get("validation", 0))


def of_training(model: Base, plan: Plan, batch: int, ssda: bool, learned: int) -> int:
    """Of all steps: those of the warm-up see labelled images alone, unless the base model needs the target there."""
    method = model.method
    shots = shots_of(batch) if ssda else 0
    warm = plan.warmup_steps if "target" in method.needs else plan.max_steps
    adapting = plan.max_steps - warm
    shown = plan.max_steps if "target" in model.needs else adapting
    labelled, target, again = batch + shots, batch - shots, "second look" in method.extra
    return (
        (plan.max_steps - shown) * model.passes(labelled, 0, learned)
        + (shown - adapting) * model.passes(labelled, target, learned)
        + adapting * model.passes(labelled, target, learned, again)
    )
