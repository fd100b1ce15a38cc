"""From settings to a configuration.

Values are layered, later ones winning: the defaults of the fields, the preset of the data set (`PRESETS`), that of
train.preset, the recipe (one of the method's presets), the file given by --config, and section.field=value settings
from the command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastget import bases, methods
from fastget.common.fields import Mismatch, check_range, convert, type_name, types_of
from fastget.common.text import nearest
from fastget.config.config import FIXED, Config, fields_of
from fastget.config.old import as_now
from fastget.config.presets import PRESETS, of_preset
from fastget.config.sections import DataConfig, MethodConfig, TrainConfig
from fastget.config.yaml_file import read_yaml
from fastget.methods.gone import why_gone

# a run's own file holds those of its backbone, which are wrong for another
OF_THE_BACKBONE = frozenset(f"data.{name}" for name in ("resize", "crop", "interpolation", "mean", "std"))


def make_config(
    settings: Mapping[str, Any] | None = None,  # {"section.field": value}
    *,
    file: str | Path | None = None,
    recipe: str | None = None,  # method.recipe
) -> Config:
    """The configuration from all layers. Raises ValueError naming the key, what was expected, the nearest right one.

    A file may hold sections of other methods than the chosen one, as old runs do; they are checked, and not used.
    """
    return _layered(_read_file(Path(file)) if file is not None else {}, dict(settings or {}), f"{file}: ", recipe)


def without_preset(config: Config) -> Config:
    """The run that this one is a short form of: with the values that hold where train.preset sets none."""
    plain = config.to_dict()
    stored = {f"{section}.{name}": value for section, part in plain.items() for name, value in part.items()}
    return _layered(stored, {"train.preset": "none"}, "", None)


def _layered(stored: dict[str, Any], settings: dict[str, Any], where: str, recipe: str | None) -> Config:
    """`stored`: the values of a file, which is named `where`."""
    if recipe is not None:
        settings["method.recipe"] = recipe
    module = settings.get("method.module", stored.get("method.module"))
    if module:
        settings["method.module"] = methods.import_module(str(module))
    method = settings.get("method.name", stored.get("method.name", MethodConfig.name))
    if _is_a_runs(stored, "get", methods.settings_of("get")):
        try:
            stored = as_now(stored, method)
        except ValueError as error:
            raise ValueError(f"{where}{error}") from error
    stored = {**_as_it_was(stored), **stored}
    before = stored.get("method.name", method)  # a file that names none goes with any
    asked = settings.get("method.recipe")
    if method != before or asked not in (None, stored.get("method.recipe", asked)):  # a run's own file, of other values
        stale = {"method.recipe", "method.weight", "method.ramp", *_recipes_fields(before, method)}
        stored = {key: value for key, value in stored.items() if key not in stale}
    was, network = stored.get("network.name"), settings.get("network.name")
    stored = _without_other_preset(stored, settings.get("train.preset"))
    if was is not None and (network or stored.get("network.name")) != was:
        stored = {key: value for key, value in stored.items() if key not in OF_THE_BACKBONE}
    checked = {**_parse_all(stored, where), **_parse_all(settings)}
    base = checked.get("method.base", MethodConfig.base)
    for key in settings:
        section = key.split(".")[0]
        if section in methods.names() and section != method:
            raise ValueError(f"{key} is a setting of {section}, and the method is {method}: leave it out")
        if section in bases.names() and section != base:
            raise ValueError(
                f"{key} is a setting of {section}, and the base model is {base}: set method.base={section}"
            )
        if key in bases.settings_of(base).ignores:
            raise ValueError(f"{key} means nothing to method.base={base}, which has {base}.weight: leave it out")
    data = checked.get("data.name", DataConfig.name)
    preset = _preset(method, checked.get("method.recipe", MethodConfig.recipe))
    quick = of_preset(checked.get("train.preset", TrainConfig.preset), data)
    values = {**PRESETS.get(data, {}), **quick, **preset, **checked}
    sections: dict[str, dict[str, Any]] = {name: {} for name in every_section()}
    for key, value in values.items():
        section, name = key.split(".")
        sections[section][name] = value
    own, of_base = methods.settings_of(method)(**sections[method]), bases.settings_of(base)(**sections[base])
    return Config(**{name: section(**sections[name]) for name, section in FIXED.items()}, own=own, base=of_base)


def _preset(method: str, recipe: str) -> dict[str, Any]:
    """A recipe's values by section.field: the method's default ones, and those of the name on top."""
    methods.check_recipe(method, recipe)
    values: dict[str, Any] = methods.settings_of(method).set_by(method, "default", recipe)
    return values


def _without_other_preset(stored: dict[str, Any], asked: Any) -> dict[str, Any]:
    """A run's own file, of another train.preset than is asked for, without that one's values."""
    before = stored.get("train.preset", "none")
    if asked in (None, before):
        return stored
    values = of_preset(str(before), str(stored.get("data.name", DataConfig.name)))
    stale = {key for key, value in values.items() if stored.get(key) == value}
    stale |= OF_THE_BACKBONE if "data.crop" in stale else set()  # the others were made to fit it
    return {key: value for key, value in stored.items() if key not in stale}


def _as_it_was(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What an older run's file cannot say: fields that came after it, whose default is not what it did."""
    values: dict[str, Any] = {}
    for name, section in every_section().items():
        later = {f"{name}.{info.name}": info for info in fields_of(section).values() if _changes(info)}
        if later and _is_a_runs(stored, name, section):
            values |= {key: info.metadata["was"] for key, info in later.items() if key not in stored}
    return values


def _is_a_runs(stored: Mapping[str, Any], name: str, section: type[Any]) -> bool:
    """A section of a run's file is known by its having most of the fields: of what has come since it lacks some, a
    person's names few."""
    first = {f"{name}.{info.name}" for info in fields_of(section).values() if not _changes(info)}
    return len(first & stored.keys()) >= 2 / 3 * len(first)


def _changes(info: dataclasses.Field[Any]) -> bool:
    return bool(info.metadata["was"] != info.default)


def _recipes_fields(*names: str) -> set[str]:
    """Every field that a recipe of these methods sets."""
    known = {name: methods.settings_of(name) for name in names if name in methods.names()}
    return {key for name, settings in known.items() for key in settings.set_by(name, *settings.presets)}


def parse_pairs(groups: Sequence[Sequence[str]]) -> dict[str, str]:
    """The settings of repeated `--set section.field=value ...` options."""
    given = {}
    for pair in (pair for group in groups for pair in group):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set takes section.field=value, got {pair!r}")
        given[key.strip()] = value.strip()
    return given


def parse_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Each value as its field's type. Raises ValueError as make_config does, but not for what does not go together."""
    return _parse_all(settings)


def describe_type(key: str) -> str:
    """A field's type in a reader's words."""
    section, name = key.split(".")
    cls = every_section()[section]
    return type_name(types_of(cls)[name], fields_of(cls)[name])


def every_section() -> dict[str, type[Any]]:
    """Every section that a setting may name: the fixed ones, and one of each base model and method."""
    of_bases = {name: bases.settings_of(name) for name in bases.names()}
    return {**FIXED, **of_bases, **{name: methods.settings_of(name) for name in methods.names()}}


def free_fields() -> frozenset[str]:
    """The fields, as section.field, that a run's figures do not depend on: those made by opt(free=True)."""
    sections = every_section().items()
    return frozenset(
        f"{section}.{name}" for section, kind in sections for name, info in fields_of(kind).items()
        if info.metadata["free"]
    )  # fmt: skip


def _read_file(file: Path) -> dict[str, Any]:
    if file == Path(""):
        raise ValueError("--config is empty (a variable that is not set?): give it a file, or leave it out")
    tree = read_yaml(file) or {}
    if isinstance(tree, dict):
        tree = {section: {} if part is None else part for section, part in tree.items()}
    if not isinstance(tree, dict) or not all(isinstance(part, dict) for part in tree.values()):
        raise ValueError(f"{file} must hold sections ({', '.join(every_section())}), each with `field: value` lines")
    return {f"{section}.{name}": value for section, part in tree.items() for name, value in part.items()}


def _parse_all(given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    try:
        return {key: _parse(key, value) for key, value in given.items()}
    except ValueError as error:
        raise ValueError(f"{where}{error}") from error


def _parse(key: str, value: Any) -> Any:
    sections = every_section()
    section, _, name = key.partition(".")
    if section not in sections or name not in types_of(sections[section]):
        if gone := why_gone(key):
            raise ValueError(gone)
        known = [f"{part}.{info}" for part, cls in sections.items() for info in fields_of(cls)]
        bare = {full.split(".")[1]: full for full in reversed(known)}  # of two sections the first is meant
        hint = f" (did you mean {bare[key]!r}?)" if key in bare else nearest(key, known)
        raise ValueError(f"unknown setting {key!r}{hint}; `fastget train --help` lists them all")
    kind, info = types_of(sections[section])[name], fields_of(sections[section])[name]
    try:
        found = convert(kind, value, info)
    except Mismatch as error:
        gone = why_gone(key, value)
        raise ValueError(gone or f"{key} must be {type_name(kind, info)}, got {value!r}{error}") from error
    if found is not None:
        check_range(key, info, found)
    return found
