"""The prediction: a row for every number of GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastget.bases import base_of
from fastget.config import Config
from fastget.networks.flops import Counted, count_network
from fastget.planning.cards import PlanCard
from fastget.planning.counts import Sizes, on_gpus, passes_on
from fastget.planning.model import Load, PlanMachine, kept_by, looking_seconds, memory_of, step_seconds
from fastget.planning.reading import Cache, Reading, Stored, cache_bytes, reading
from fastget.training.build import eval_batch_size
from fastget.training.passes import Passes


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be planned."""

    config: Config  # its preprocessing filled in
    sizes: Sizes
    stored: tuple[Stored, Stored]  # source and target
    machine: PlanMachine
    gpus: Sequence[int]
    cache: Cache = "off"
    fixed: bool = False  # whether the global batch stays as it is

    @property
    def card(self) -> PlanCard:
        return self.machine.card


@dataclass(frozen=True)
class PlanRow:
    """A number of GPUs."""

    gpus: int
    batch: int  # of each domain, over all GPUs
    steps: int
    images_per_second: float  # that training reads, as a run logs it
    hours: float
    training_hours: float
    evaluation_hours: float
    bound: str
    parts: dict[
        str, float
    ]  # share of the whole time by what bounds it; an evaluation that waits for images is decoding
    step_ms: float
    memory: dict[str, float]  # bytes on each GPU
    fits: bool
    disk_per_second: float  # bytes that training reads


@dataclass(frozen=True)
class Planned:
    """All of it."""

    asked: Asked
    counted: Counted
    passes: Passes  # of the first row
    reading: Reading
    rows: list[PlanRow]
    cache: dict[str, int]  # bytes by format


def predict(asked: Asked) -> Planned:
    """ValueError for a network that cannot be counted, or if no number of GPUs is left."""
    config, sizes = asked.config, asked.sizes
    counted = count_network(config.network, sizes.classes, config.data.preprocessing.crop)
    if counted is None:
        raise ValueError(f"network.name={config.network.name} has an operation that cannot be counted without content")
    found = on_gpus(config, sizes, asked.gpus, asked.fixed)
    if not found:
        raise ValueError(
            f"a fixed batch of {config.train.batch_size} cannot be shared evenly by {', '.join(map(str, asked.gpus))} "
            "GPUs: choose other numbers by --gpus, or a multiple of them by train.batch_size"
        )
    read = reading(config, asked.stored, asked.cache, asked.card if asked.machine.gpu else None)
    passes = {count: passes_on(run, sizes) for count, run in found.items()}
    rows = [_row(asked, found[count], counted, read, count, one) for count, one in passes.items()]
    cache = cache_bytes(sizes.stored, config.data.preprocessing.resize)
    return Planned(asked, counted, next(iter(passes.values())), read, rows, cache)


def _row(asked: Asked, config: Config, counted: Counted, read: Reading, gpus: int, passes: Passes) -> PlanRow:
    machine, batch, share = asked.machine, config.train.batch_size, 1 / gpus
    kept = kept_by(config, asked.sizes.classes, asked.sizes.target, gpus)
    load = Load(counted, kept, read, gathered=share * _mixed(config, passes))
    parts: dict[str, float] = {}
    for steps, kind in ((passes.warm_steps, passes.warm), (passes.adapting_steps, passes.adapting)):
        _add(parts, step_seconds(load, kind, share, machine, gpus).parts(), steps)
    training = sum(parts.values())
    local = dataclasses.replace(config, train=dataclasses.replace(config.train, batch_size=max(1, batch // gpus)))
    size = eval_batch_size(local)
    look, times = looking_seconds(load, size, machine), passes.looked_at / size / gpus
    evaluation = look.seconds * times
    looking = {
        "decode" if name == "decode" else "evaluation": seconds for name, seconds in look.parts().items() if seconds
    }
    _add(parts, looking, times)
    whole, steps = training + evaluation, passes.plan.max_steps
    memory = memory_of(config, counted, kept, passes.adapting, share, gpus, size, machine.half,
                       "cuda" if machine.gpu else "cpu")  # fmt: skip
    rate = passes.shown / training
    return PlanRow(
        gpus, batch, steps, rate, whole / 3600, training / 3600, evaluation / 3600,
        max(parts, key=lambda name: parts[name]), {name: part / whole for name, part in parts.items()},
        1000 * training / steps, memory, sum(memory.values()) <= machine.card.memory, rate * read.bytes,
    )  # fmt: skip


def _add(total: dict[str, float], parts: Mapping[str, float], times: float) -> None:
    for name, seconds in parts.items():
        total[name] = total.get(name, 0.0) + times * seconds


def _mixed(config: Config, passes: Passes) -> float:
    """Bytes of a step's images that ranks show one another, where the base model mixes those of all."""
    if "second view" not in base_of(config.method.base).needs:
        return 0.0
    return 4 * 3 * config.data.preprocessing.crop**2 * max(call.rows for call in passes.adapting.calls)


def as_json(planned: Planned, assumptions: Sequence[str]) -> dict[str, Any]:
    """For programs."""
    asked, passes = planned.asked, planned.passes
    return {
        "data": asked.config.data.name,
        "images": dataclasses.asdict(asked.sizes),
        "network": asked.config.network.name,
        "crop": asked.config.data.preprocessing.crop,
        "method": asked.config.method.name,
        "base": asked.config.method.base,
        "setting": asked.config.data.setting,
        "card": asked.card.name,
        "precision": "half" if asked.machine.half else "float32",
        "flops_per_image": planned.counted.flops,
        "parameters": planned.counted.parameters,
        "passes_per_step": {"warm-up": passes.first.passes, "adapting": passes.adapting.passes},
        "passes": {"training": passes.training, "evaluation": passes.evaluation, "start": passes.start},
        "cache": {"used": asked.cache, "bytes": planned.cache},
        "rows": [dataclasses.asdict(row) for row in planned.rows],
        "assumptions": list(assumptions),
    }
