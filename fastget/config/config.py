"""All sections of a run together: the fixed ones, and the one that the chosen method owns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from fastget import methods
from fastget.common import fields
from fastget.config.sections import DataConfig, MethodConfig, NetworkConfig, OptimConfig, TrainConfig

FIXED: dict[str, type[Any]] = {
    "data": DataConfig,
    "network": NetworkConfig,
    "method": MethodConfig,
    "optim": OptimConfig,
    "train": TrainConfig,
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run. `own` is the section of the chosen method, an instance of its Config; `config.get` reads it by name."""

    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    own: Any = None  # None: the method's defaults
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        kind = methods.settings_of(self.method.name)
        if self.own is None:
            object.__setattr__(self, "own", kind())
        if type(self.own) is not kind:
            raise ValueError(
                f"method.name={self.method.name} goes with a {kind.__name__}, and own is {self.own!r}: "
                "give its settings too, or make the configuration anew by make_config"
            )
        for name, section in self.sections().items():
            fields.check(section, f"{name}.")
        if self.data.crop > self.data.resize:
            raise ValueError(
                f"data.crop ({self.data.crop}) must not exceed data.resize ({self.data.resize}): "
                "a crop cannot be larger than the image"
            )
        if self.optim.nesterov and self.optim.momentum == 0:
            raise ValueError("optim.nesterov needs a momentum above 0: set optim.nesterov=false or optim.momentum=0.9")
        if self.train.select == "validation" and self.data.setting != "ssda":
            raise ValueError(
                f"train.select=validation chooses by ssda's validation list, and data.setting is {self.data.setting}: "
                "use --setting ssda, or what needs no labels: entropy, mutual_information or neighbourhood_density"
            )
        if len(set(self.train.seeds)) != len(self.train.seeds) or not self.train.seeds:
            raise ValueError(f"train.seeds must be one or more different seeds, got {list(self.train.seeds)}")

    if not TYPE_CHECKING:  # or every misspelt attribute would pass for one of Any

        def __getattr__(self, name: str) -> Any:
            method = self.__dict__.get("method")  # not there yet while a copy is being made
            if method is None or name.startswith("_") or name != method.name.replace("-", "_"):
                raise AttributeError(f"the configuration has no section {name!r}")
            return self.own

    def sections(self) -> dict[str, Any]:
        """Name -> section, the method's own under its name."""
        found = {name: getattr(self, name) for name in FIXED}
        return {**found, self.method.name: self.own}

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain sections, as in config.yaml."""
        plain = {name: dataclasses.asdict(section) for name, section in self.sections().items()}
        return {name: {key: _plain(value) for key, value in part.items()} for name, part in plain.items()}

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.to_dict(), sort_keys=False))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def fields_of(section: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Name -> description of a section's fields."""
    return {info.name: info for info in dataclasses.fields(section)}


def walk(config: Config) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """(section.field, its description, its value) of every field."""
    for name, section in config.sections().items():
        for info in dataclasses.fields(section):
            yield f"{name}.{info.name}", info, getattr(section, info.name)


def changed(stored: Mapping[str, Mapping[str, Any]], config: Config) -> list[str]:
    """In words, the fields in which a stored configuration leads elsewhere than this one. A field that was not there
    when it was stored had its default."""
    words = []
    mine = config.to_dict()
    for key, info, _ in walk(config):
        section, name = key.split(".")
        here = mine[section][name]
        there = stored.get(section, {}).get(name, _plain(info.default))
        if not info.metadata["free"] and here != there:
            words.append(f"{key} ({there!r} there, {here!r} here)")
    return words
