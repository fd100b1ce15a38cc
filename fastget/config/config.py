"""All sections of a run together: the fixed ones, and the one that the chosen method owns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from fastget import bases, methods
from fastget.common import fields
from fastget.config.combinations import title_of, why_not
from fastget.config.old import as_now
from fastget.config.sections import DataConfig, MethodConfig, NetworkConfig, OptimConfig, TrainConfig

FIXED: dict[str, type[Any]] = {
    "data": DataConfig,
    "network": NetworkConfig,
    "method": MethodConfig,
    "optim": OptimConfig,
    "train": TrainConfig,
}


WHO = ("method.name", "method.base", "method.module", "method.recipe")  # and not how


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run. `own` is the section of the chosen method, an instance of its Config, and `base` that of the base model;
    `config.get`, `config.cdan` read them by name."""

    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    own: Any = None  # None: the method's defaults
    base: Any = None  # None: the base model's
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        self._fill("own", "name", methods.settings_of(self.method.name))
        self._fill("base", "base", bases.settings_of(self.method.base))
        for name, section in self.sections().items():
            fields.check(section, f"{name}.")
        if self.data.crop and self.data.resize and self.data.crop > self.data.resize:
            raise ValueError(
                f"data.crop ({self.data.crop}) must not exceed data.resize ({self.data.resize}): "
                "a crop cannot be larger than the image"
            )
        for name in ("mean", "std"):
            if len(getattr(self.data, name) or (0, 0, 0)) != 3:
                raise ValueError(f"data.{name} must be three numbers, one a channel, got {getattr(self.data, name)}")
        if self.optim.nesterov and self.optim.momentum == 0:
            raise ValueError("optim.nesterov needs a momentum above 0: set optim.nesterov=false or optim.momentum=0.9")
        methods.check_recipe(self.method.name, self.method.recipe)
        if reason := why_not(self.method.name, self.method.base, self.data.setting, self.network.head):
            raise ValueError(reason)
        if self.train.select == "validation" and self.data.setting != "ssda":
            raise ValueError(
                f"train.select=validation chooses by ssda's validation list, and data.setting is {self.data.setting}: "
                "use --setting ssda, or what needs no labels: entropy, mutual_information or neighbourhood_density"
            )
        if len(set(self.train.seeds)) != len(self.train.seeds) or not self.train.seeds:
            raise ValueError(f"train.seeds must be one or more different seeds, got {list(self.train.seeds)}")

    def _fill(self, attribute: str, choice: str, kind: type[Any]) -> None:
        """A section that belongs to a choice: its defaults, unless it is given."""
        if getattr(self, attribute) is None:
            object.__setattr__(self, attribute, kind())
        given = getattr(self, attribute)
        if type(given) is not kind:
            raise ValueError(
                f"method.{choice}={getattr(self.method, choice)} goes with a {kind.__name__}, and {attribute} is "
                f"{given!r}: give its settings too, or make the configuration anew by make_config"
            )

    if not TYPE_CHECKING:  # or every misspelt attribute would pass for one of Any

        def __getattr__(self, name: str) -> Any:
            method = self.__dict__.get("method")  # not there yet while a copy is being made
            if method is not None and name == method.name.replace("-", "_"):
                return self.own
            if method is not None and name == method.base:
                return self.base
            raise AttributeError(f"the configuration has no section {name!r}")

    def sections(self) -> dict[str, Any]:
        """Name -> section, the method's own and the base model's under their names."""
        found = {name: getattr(self, name) for name in FIXED} | {self.method.name: self.own}
        return {**found, self.method.base: self.base} if dataclasses.fields(self.base) else found

    @property
    def title(self) -> str:
        return title_of(self.method.name, self.method.base)

    def of_method(self) -> dict[str, Any]:
        """By section.field, what makes the method and its base model what they are in this run: their own values, and
        those of other sections that the method's recipe sets."""
        plain = self.to_dict()
        ignored = {*WHO, *self.base.ignores}
        names = {"method", self.method.name, self.method.base} & plain.keys()
        own = {f"{name}.{key}": value for name in names for key, value in plain[name].items()}
        recipe = self.own.set_by(self.method.name, "default", self.method.recipe)
        parts = [key.split(".") for key in recipe]
        others = {f"{section}.{name}": plain[section][name] for section, name in parts if section in plain}
        return {key: value for key, value in sorted({**own, **others}.items()) if key not in ignored}

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
    when it was stored says what it was. ValueError if it is an older version's, and this one cannot do what it did."""
    words = []
    mine = config.to_dict()
    then = as_now({f"{section}.{name}": value for section, part in stored.items() for name, value in part.items()})
    for key, info, _ in walk(config):
        section, name = key.split(".")
        here = mine[section][name]
        was = info.metadata["was"]
        there = then.get(key, _plain(was))
        unused = here is None and was is not None  # what features have had already
        if not info.metadata["free"] and here != there and not unused:
            words.append(f"{key} ({there!r} there, {here!r} here)")
    return words
