"""What there is to do: steps, image passes of training and of evaluations."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fastget.config import Config
from fastget.methods import method_of
from fastget.planning.counts import Sizes
from fastget.planning.rehearsal import Rehearsal, rehearse
from fastget.training.cost import LOOKED_AT
from fastget.training.schedule import Plan, make_plan


@dataclass(frozen=True)
class Work:
    """Of a whole run, over all GPUs."""

    batch: int  # the global one, of each domain
    plan: Plan
    warm_steps: int  # those in which the target is not adapted to yet
    rehearsal: Rehearsal  # of the batch that was rehearsed: see `scale`
    scale: float  # this batch to that one
    started: int  # images looked at when the method starts, and at later epochs
    evaluated: int

    @property
    def adapting_steps(self) -> int:
        return self.plan.max_steps - self.warm_steps

    @property
    def trained(self) -> float:
        """Image passes of all steps."""
        one = self.rehearsal
        return self.scale * (self.warm_steps * one.warm.passes + self.adapting_steps * one.adapting.passes)

    @property
    def shown(self) -> float:
        """Images that training reads."""
        one = self.rehearsal
        return self.scale * (self.warm_steps * one.warm.shown + self.adapting_steps * one.adapting.shown)

    @property
    def looked_at(self) -> int:
        """Image passes that are no training."""
        return LOOKED_AT * (self.started + self.evaluated)


def works(config: Config, sizes: Sizes, gpus: list[int], fixed: bool) -> dict[int, Work]:
    """By number of GPUs. The batch grows with them, and the steps become fewer, unless it is fixed: then a number that
    does not divide it is left out."""
    whole = _schedule(config, sizes, 1)
    rehearsal = rehearse(config, sizes.classes, warm=whole.warmup_steps > 0)
    found = {}
    for count in gpus:
        times = 1 if fixed else count
        batch = config.train.batch_size * times
        if batch % count or (rehearsal.shots * times) % count:
            continue
        plan = whole if fixed else _schedule(config, sizes, times)
        found[count] = _work(config, sizes, plan, rehearsal, batch)
    return found


def _schedule(config: Config, sizes: Sizes, times: int) -> Plan:
    """With a batch so many times the configuration's. A length in steps is one in images: so many times fewer."""
    train, method = config.train, method_of(config.method.name)
    fewer = {
        name: max(1, round(value / times)) if value else value
        for name in ("max_steps", "warmup_steps", "eval_every", "checkpoint_every")
        if (value := getattr(train, name)) is not None
    }
    batch = train.batch_size * times
    shots = max(1, batch // 3) if sizes.labelled_target else 0
    epoch = max(1, sizes.source // batch, sizes.target // max(1, batch - shots))
    return make_plan(dataclasses.replace(train, **fewer), method, epoch)


def _work(config: Config, sizes: Sizes, plan: Plan, rehearsal: Rehearsal, batch: int) -> Work:
    adapts = "target" in method_of(config.method.name).needs
    warm = plan.warmup_steps if adapts else 0  # for a method without the target all steps are of one kind
    epochs = (plan.max_steps - 1) // plan.epoch_steps - warm // plan.epoch_steps if adapts else 0
    domains = {"source": sizes.source, "target": sizes.target}
    started = sum(domains[name] * (rehearsal.starts[name] + epochs * rehearsal.epochs[name]) for name in domains)
    count = -(-plan.max_steps // plan.eval_every)
    evaluated = (count - 1) * config.train.interim_images(sizes.target) + sizes.target
    return Work(batch, plan, warm, rehearsal, batch / config.train.batch_size, started, evaluated)
