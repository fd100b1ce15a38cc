"""What a planned run has to do: images of both domains, as published or given, as the setting leaves them; its passes
on any number of GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastget.config import Config
from fastget.data.datasets import DATA_SETS
from fastget.methods import method_of
from fastget.methods.base import Method, Task
from fastget.training.build import shots_of
from fastget.training.passes import Passes, passes_of, plan_of


@dataclass(frozen=True)
class Sizes:
    """Images, as the setting leaves them, and classes."""

    source: int
    target: int  # without labels
    labelled_target: int
    classes: int

    @property
    def lists(self) -> dict[str, int]:
        """By role, as a run has them."""
        lists = {"source": self.source, "target": self.target}
        return {**lists, "labelled_target": self.labelled_target} if self.labelled_target else lists

    @property
    def stored(self) -> int:
        """Images on disk."""
        return self.source + self.target + self.labelled_target


def sizes_of(config: Config, images: tuple[int, int] | None, classes: int | None) -> Sizes:
    """Of the data set as published, or as given. ValueError says what is missing."""
    data, known = config.data, DATA_SETS.get(config.data.name)
    if data.name == "features":
        raise ValueError("data.name=features runs no backbone, and takes seconds: plan for the images, or just train")
    classes = classes or (known.num_classes if known else None)
    if images is None and known is not None:
        images = _published(known.domains, data.source, "source"), _published(known.domains, data.target, "target")
    if images is None or classes is None:
        raise ValueError(
            f"data.name={data.name} is not counted here: give --images SOURCE,TARGET and --classes, "
            f"or a data set that is known ({', '.join(DATA_SETS)})"
        )
    source, target = (count if data.limit is None else min(count, data.limit) for count in images)
    target = in_setting(config, target, classes)
    shots = min(data.shots * classes, target - 1) if data.setting == "ssda" else 0
    return Sizes(source, target - shots, shots, classes)


def _published(domains: dict[str, int], name: str | None, role: str) -> int:
    if name not in domains:
        raise ValueError(f"data.{role} must be one of {', '.join(domains)}, got {name!r}; or give --images")
    return domains[name]


def in_setting(config: Config, target: int, classes: int) -> int:
    """About how many target images the setting leaves."""
    data = config.data
    if data.setting == "pda":
        target = target * (data.pda_classes or classes // 2) // classes
    return round(target * (1 + data.imbalanced_keep) / 2) if data.imbalanced else target


def method_without_content(config: Config, classes: int, target: int) -> Method:
    """The method for so many target images, without memory behind its tensors."""
    with torch.device("meta"):
        task = Task(classes, config.network.bottleneck_dim, target, config.data.setting)
        return method_of(config.method.name)(config.own, task)


def passes_on(config: Config, sizes: Sizes) -> Passes:
    """Of a run on images so many."""
    method = method_without_content(config, sizes.classes, sizes.target)
    return passes_of(config, method, plan_of(config, sizes.lists), sizes.lists)


def on_gpus(config: Config, sizes: Sizes, gpus: Sequence[int], fixed: bool) -> dict[int, Config]:
    """By number of GPUs, the run there. The batch grows with them, and the steps become fewer, unless it is fixed: then
    a number that does not divide it is left out."""
    if not fixed:
        return {count: _grown(config, count) for count in gpus}
    shots = shots_of(config.train.batch_size) if sizes.labelled_target else 0
    return {count: config for count in gpus if config.train.batch_size % count == shots % count == 0}


def _grown(config: Config, times: int) -> Config:
    """With a batch so many times as large. A length in steps is one in images: so many times fewer."""
    train = config.train
    fewer = {
        name: max(1, round(value / times)) if value else value
        for name in ("max_steps", "warmup_steps", "eval_every", "checkpoint_every")
        if (value := getattr(train, name)) is not None
    }
    return dataclasses.replace(config, train=dataclasses.replace(train, **fewer, batch_size=times * train.batch_size))
