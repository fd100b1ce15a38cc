"""Plans of the tests."""

from __future__ import annotations

from typing import Any

from fastget.config import Config, make_config
from fastget.networks.preprocessing import filled
from fastget.planning.cards import card_of
from fastget.planning.counts import sizes_of
from fastget.planning.model import PlanMachine
from fastget.planning.predict import Asked, Planned, predict
from fastget.planning.reading import stored_as

GPUS = [2**i for i in range(9)]


def config_of(**settings: Any) -> Config:
    """Fields are written with __ for the dot."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return filled(make_config({"data.name": "visda2017", "network.name": "resnet18", **given}))


def plan(card: str = "a100", *, gpus: list[int] = GPUS, images: tuple[int, int] | None = None,
         classes: int | None = None, cores: int = 8, **options: Any) -> Planned:  # fmt: skip
    """Of `config_of`'s settings, and what else `Asked` takes."""
    known = {name: options.pop(name) for name in ("cache", "fixed") if name in options}
    files, pixels = options.pop("files", None), options.pop("pixels", None)
    config = config_of(**options)
    machine = PlanMachine(card_of(card), True, cores)
    return predict(
        Asked(config=config, sizes=sizes_of(config, images, classes), stored=stored_as(config, files, pixels),
              machine=machine, gpus=gpus, **known)
    )  # fmt: skip
