"""What the run would cost that a preset is the short form of: image passes, and an estimate of the time.

The time is that of this run, by the count of passes and by what a pass computes: both networks are traced without
content, and their multiplications counted. Another image size or network may reach another share of the machine's
peak, so that it is an estimate.
"""

from __future__ import annotations

from fastget.bases.base import SECOND_LOOK
from fastget.config import Config, without_preset
from fastget.networks.counted import count_network
from fastget.networks.preprocessing import filled
from fastget.training.cost import LEARNED, LOOKED_AT
from fastget.training.engine import Engine
from fastget.training.loop import Loop
from fastget.training.passes import passes_of
from fastget.training.schedule import Plan, make_plan


def full_run(loop: Loop) -> str:
    """In words, after the last step of a run with a preset."""
    engine = loop.engine
    full = filled(without_preset(engine.config))
    whole = engine.domains.protocol.get("whole", {}) if full.data.limit is None else {}
    sizes = {role: whole.get(role, len(images)) for role, images in engine.domains.lists().items()}
    plan = plan_of(engine, full, sizes)
    training = training_passes(engine, full, plan, loop.cost.passes)
    evaluation = passes_of(engine, full, plan, sizes).looked_at
    what = [f"{plan.max_steps:,} steps of {full.train.batch_size} images a domain"]
    if engine.domains.origin is None:
        what.insert(0, f"{full.network.name} at {full.data.crop} pixels")
    words = (
        f"train.preset={engine.config.train.preset} gives a first answer. The full run, by the same command without it "
        f"({', '.join(what)}), costs {training:,.0f} image passes of training and {evaluation:,} of evaluation"
    )
    ratio = compared(engine, full)
    if ratio is None:
        return f"{words}."
    a_pass, an_image = loop.clock.speed()
    seconds = ratio * (training * a_pass + evaluation * an_image)
    return f"{words}: at the speed measured here about {about(seconds)}, {ratio:.1f} times as much computation a pass."


def plan_of(engine: Engine, full: Config, sizes: dict[str, int]) -> Plan:
    """The full run's, an epoch being as many batches as the larger domain holds."""
    largest = max(sizes["source"], sizes["target"])
    return make_plan(full.train, type(engine.method), max(1, largest // full.train.batch_size))


def training_passes(engine: Engine, full: Config, plan: Plan, measured: dict[str, float]) -> float:
    """Of all steps: those of the warm-up see the source alone, the others what the last steps of this run saw."""
    batch = full.train.batch_size / engine.config.train.batch_size
    learned = LEARNED if full.optim.backbone_lr_scale else LOOKED_AT
    here = LEARNED if engine.config.optim.backbone_lr_scale or engine.domains.origin is not None else LOOKED_AT
    a_step = sum(n * batch * (1 if what == SECOND_LOOK else learned / here) for what, n in measured.items())
    warm = plan.warmup_steps if "target" not in engine.model.needs else 0
    return warm * full.train.batch_size * learned + (plan.max_steps - warm) * a_step


def compared(engine: Engine, full: Config) -> float | None:
    """How much more a pass of the full run's network computes than one of this run's; None: not to be known."""
    if engine.domains.origin is not None or (full.network.name, full.data.crop) == (
        engine.config.network.name,
        engine.config.data.crop,
    ):
        return 1.0
    classes = len(engine.target.classes)
    here, there = (operations(config, classes) for config in (engine.config, full))
    return there / here if here and there else None


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
