"""What a run is going to do, counted from its configuration before its first step: its steps, what each of them sends
through the network, and its image passes.

As in `cost`: an image that is learned from counts as three passes, one that is only looked at, or goes through a frozen
backbone, as one. How long that takes is another question: a run measures it (`clock`), `planning` models it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fastget.bases import base_of
from fastget.bases.base import Call
from fastget.config import Config, without_preset
from fastget.methods import method_of
from fastget.methods.base import Method
from fastget.networks.flops import count_network
from fastget.networks.preprocessing import filled
from fastget.training.build import shots_of
from fastget.training.cost import LEARNED, LOOKED_AT
from fastget.training.schedule import Plan, make_plan, renews

if TYPE_CHECKING:
    from fastget.training.engine import Engine


class StepKind(NamedTuple):
    """A kind of step."""

    calls: tuple[Call, ...]  # of the network, in order
    shown: int  # images that the loaders deliver
    parts: int  # steps of the optimizer

    @property
    def passes(self) -> int:
        return sum(call.rows * (LEARNED if call.learned else LOOKED_AT) for call in self.calls)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Of a whole run, over all ranks."""

    plan: Plan
    warm: StepKind  # a step before the method starts, as all are of a method without the target
    adapting: StepKind  # and one after it
    warm_steps: int
    looks: tuple[tuple[int, int], ...]  # the method's own at the target, and the source: at which step how many images
    interim: int  # images of an evaluation before the last one
    target: int  # and of the last one
    validation: int  # SSDA's list, in every evaluation

    @property
    def start(self) -> int:
        """Images the method looks at when it starts, after the warm-up, and at later epochs or periods."""
        return self.looks_after(0)

    def looks_after(self, step: int) -> int:
        """Of them, those that are looked at once so many steps are done."""
        return sum(images for at, images in self.looks if at >= step)

    @property
    def adapting_steps(self) -> int:
        return self.plan.max_steps - self.warm_steps

    @property
    def first(self) -> StepKind:
        """The first step."""
        return self.warm if self.warm_steps else self.adapting

    @property
    def training(self) -> int:
        return self.warm_steps * self.warm.passes + self.adapting_steps * self.adapting.passes

    @property
    def shown(self) -> int:
        """Images that training reads."""
        return self.warm_steps * self.warm.shown + self.adapting_steps * self.adapting.shown

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
    def total(self) -> int:
        return self.training + self.looked_at

    @property
    def share(self) -> float:
        """Of the evaluations in the whole run."""
        return self.evaluation / self.total

    def words(self) -> str:
        """For the log's first lines."""
        count = self.evaluations_after(0)
        learned = any(call.learned for call in self.adapting.calls)
        threefold = "; an image learned from counts as three" if learned else ""
        parts = [("training", self.training, f"{self.plan.max_steps:,} steps{threefold}")]
        if self.start:
            parts.append(("the method's start", self.start, ""))
        before = f"{count - 1} on {self.interim:,} of {self.target:,} target images, the last on all"
        parts.append(("evaluation", self.evaluation, before if self.interim < self.target else f"{count} of them"))
        said = [
            f"{what} {passes:,} ({100 * passes / self.total:.0f} %{f', {more}' if more else ''})"
            for what, passes, more in parts
        ]
        return f"plan: {self.total:,} image passes: {'; '.join(said)}"


def plan_of(config: Config, sizes: Mapping[str, int]) -> Plan:
    """Of a run on lists of so many images: an epoch is as many batches as the larger domain holds."""
    batch = config.train.batch_size
    unlabelled = batch - (shots_of(batch) if sizes.get("labelled_target") else 0)
    epoch = max(1, sizes["source"] // batch, sizes["target"] // max(1, unlabelled))
    return make_plan(config.train, method_of(config.method.name), epoch)


def passes_of(config: Config, method: Method, plan: Plan, sizes: Mapping[str, int]) -> Passes:
    """Of a run of this configuration and plan on lists of so many images. The method says what else it looks at."""
    adapts, extra, target = "target" in method.needs, method.extra, sizes["target"]
    warm_steps = plan.warmup_steps if adapts else plan.max_steps
    start = target if adapts and (warm_steps or extra & {"whole target", "each epoch"}) else 0
    start += sizes["source"] if adapts and "whole source" in extra else 0
    each = range(warm_steps + 1, plan.max_steps) if adapts and "each epoch" in extra else ()
    looks = ((warm_steps, start), *((step, target) for step in each if renews(method, plan, step)))
    shots = bool(sizes.get("labelled_target"))
    return Passes(
        plan=plan, warm=kind_of(config, method, shots, False), adapting=kind_of(config, method, shots),
        warm_steps=warm_steps, looks=looks, interim=config.train.interim_images(target), target=target,
        validation=sizes.get("validation", 0),
    )  # fmt: skip


def kind_of(config: Config, method: Method, ssda: bool, started: bool = True) -> StepKind:
    """A step. Before the method starts a step shows labelled images alone, unless the base model needs the target."""
    base, batch = base_of(config.method.base), config.train.batch_size
    shots = shots_of(batch) if ssda else 0
    adapting = started and "target" in method.needs
    labelled = 0 if adapting and "source-free" in method.needs else batch
    target = batch - shots if adapting or "target" in base.needs else 0
    apart = "own step" in method.needs and target > 0  # the method's term alone
    calls = base.calls(labelled, 0 if apart else target, shots)
    if apart:
        calls += base.calls(0, target, 0)
    if adapting and "second look" in method.extra:
        calls += base.calls_again(target)
    if not config.optim.backbone_lr_scale and config.data.name != "features":
        calls = tuple(call._replace(learned=False) for call in calls)
    return StepKind(calls, labelled + shots + target, 2 if apart else 1)


def planned(engine: Engine) -> Passes:
    """Of an engine's run, from its first step."""
    return passes_of(engine.config, engine.method, engine.plan, _listed(engine))


def _listed(engine: Engine) -> dict[str, int]:
    return {role: len(images) for role, images in engine.domains.lists().items()}


# --- the run that a preset is the short form of --------------------------------------------------


def full_run(engine: Engine, a_pass: float, an_image: float) -> str:
    """In words, after the last step of a run with a preset: what the run without it costs. The time is by what a pass
    of training and an image of an evaluation took here, in seconds, and by the multiplications of both networks;
    another image size or network may reach another share of the machine's peak, so that it is an estimate."""
    full = filled(without_preset(engine.config))
    whole = engine.domains.protocol.get("whole", {}) if full.data.limit is None else {}
    sizes = {**_listed(engine), **whole}
    costs = passes_of(full, engine.method, plan_of(full, sizes), sizes)
    what = [f"{costs.plan.max_steps:,} steps of {full.train.batch_size} images a domain"]
    if engine.domains.origin is None:
        what.insert(0, f"{full.network.name} at {full.data.crop} pixels")
    words = (
        f"train.preset={engine.config.train.preset} gives a first answer. The full run, by the same command without it "
        f"({', '.join(what)}), costs {costs.training:,} image passes of training and {costs.looked_at:,} of evaluation"
    )
    ratio = _compared(engine, full)
    if ratio is None:
        return f"{words}."
    seconds = ratio * (costs.training * a_pass + costs.looked_at * an_image)
    return f"{words}: at the speed measured here about {about(seconds)}, {ratio:.1f} times as much computation a pass."


def _compared(engine: Engine, full: Config) -> float | None:
    """How much more a pass of the full run's network computes than one of this run's; None: not to be known."""
    here = engine.config
    same = (full.network.name, full.data.crop) == (here.network.name, here.data.crop)
    if engine.domains.origin is not None or same:
        return 1.0
    classes = len(engine.target.classes)
    there, now = operations(full, classes), operations(here, classes)
    return there / now if there and now else None


def operations(config: Config, classes: int) -> int | None:
    """Of one image's forward pass; None for a network with an operation that cannot be traced without content."""
    counted = count_network(config.network, classes, config.data.preprocessing.crop)
    return None if counted is None else counted.flops


def about(seconds: float) -> str:
    """A length of time in the unit that suits it."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
