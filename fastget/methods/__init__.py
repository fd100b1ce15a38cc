"""Methods: what adds the target's term to the loss. This is their registry: names, and where each one is.

    "mcc": RegisteredMethod(settings.MCCSettings, "fastget.methods.mcc:MCC")

A method's module is imported when the method is used, so that a configuration is read without torch. A method of your
own joins with one line, `fastget.methods.register("name", YourMethod)`; CONTRIBUTING.md has a worked example.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastget.common import fields
from fastget.common.text import nearest
from fastget.methods import settings
from fastget.methods.gone import why_gone

if TYPE_CHECKING:
    from fastget.methods.base import Method


class RegisteredMethod(NamedTuple):
    """What is known of a method before it is imported."""

    settings: type[Any]  # its section of the configuration
    method: str | type[Method]  # module:Class, or the class itself


_ENTRIES: dict[str, RegisteredMethod] = {
    "get": RegisteredMethod(settings.Get, "fastget.methods.get.method:GetMethod"),
    "source-only": RegisteredMethod(settings.SourceOnlySettings, "fastget.methods.source_only:SourceOnly"),
    "minent": RegisteredMethod(settings.MinEntSettings, "fastget.methods.minent:MinEnt"),
    "bnm": RegisteredMethod(settings.BNMSettings, "fastget.methods.bnm:BNM"),
    "mcc": RegisteredMethod(settings.MCCSettings, "fastget.methods.mcc:MCC"),
    "pl": RegisteredMethod(settings.PLSettings, "fastget.methods.pl:PL"),
    "atdoc-nc": RegisteredMethod(settings.AtdocNCSettings, "fastget.methods.atdoc_nc:AtdocNC"),
    "atdoc-na": RegisteredMethod(settings.AtdocNASettings, "fastget.methods.atdoc_na:AtdocNA"),
    "dann": RegisteredMethod(settings.DANNSettings, "fastget.methods.dann:DANN"),
    "safn": RegisteredMethod(settings.SAFNSettings, "fastget.methods.safn:SAFN"),
    "daln": RegisteredMethod(settings.DALNSettings, "fastget.methods.daln:DALN"),
    "scda": RegisteredMethod(settings.SCDASettings, "fastget.methods.scda:SCDA"),
    "alpha-power": RegisteredMethod(settings.AlphaPowerSettings, "fastget.methods.alpha_power:AlphaPower"),
    "shot": RegisteredMethod(settings.SHOTSettings, "fastget.methods.shot:SHOT"),
    "aad": RegisteredMethod(settings.AaDSettings, "fastget.methods.aad:AaD"),
    "mme": RegisteredMethod(settings.MMESettings, "fastget.methods.mme:MME"),
}
DEFAULT = "get"
_OWN = frozenset(_ENTRIES)  # a user's method takes none of these names
_TAKEN = ("data", "network", "method", "optim", "train", "plain", "cdan", "mixmatch")  # the other sections


def names() -> tuple[str, ...]:
    """All methods, the default first."""
    return tuple(_ENTRIES)


def settings_of(name: str) -> type[Any]:
    """The section of the configuration that a method owns."""
    return _entry(name).settings


def method_of(name: str) -> type[Method]:
    """A method's class, imported now."""
    where = _entry(name).method
    if not isinstance(where, str):
        return where
    module, _, cls = where.partition(":")
    found: type[Method] = getattr(importlib.import_module(module), cls)
    return found


def register(name: str, method: type[Method]) -> None:
    """Let `method.name=NAME` mean this class; a name of one's own may be registered again. Raises ValueError if it is
    no method, its Config cannot be read, or the name is taken."""
    from fastget.methods.base import Method

    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ValueError(f"register({name!r}, ...) takes a subclass of fastget.methods.base.Method, got {method!r}")
    if method.forward is Method.forward:
        raise ValueError(f"{method.__name__} has no forward(seen): it is where the target's term is made")
    if name in _OWN or name in _TAKEN:
        raise ValueError(f"the name {name!r} is taken: choose another one for {method.__name__}")
    if not name or set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-_"):
        raise ValueError(f"a method's name is made of small letters, digits, - and _, got {name!r}")
    own: Any = getattr(method, "Config", None)
    _check_settings(own, f"{method.__name__}.Config")
    if (method.labels is not Method.labels) != ("labels" in own.gives):
        raise ValueError(
            f"{method.__name__} has {'no ' if 'labels' in own.gives else ''}labels(seen): a method that has it, and no "
            'other, says so in its Config: gives = frozenset({"term", "labels"})'
        )
    for part, what in (("own step", "an own step"), ("source-free", "source-free")):
        if (part in method.needs) != (part in own.gives):
            raise ValueError(f"{method.__name__}: {what} is said twice or not at all, in `needs` and in Config.gives")
    if "source-free" in method.needs and "ssda" in own.runs_in:
        raise ValueError(
            f"{method.__name__}: a source-free step has no cross-entropy, so that ssda's labelled images would do "
            "nothing: leave ssda out of Config.runs_in"
        )
    _ENTRIES[name] = RegisteredMethod(own, method)


def _check_settings(own: Any, what: str) -> None:
    if not (isinstance(own, type) and issubclass(own, settings.Settings)):
        raise ValueError(f"{what} must be a frozen dataclass that inherits from Settings, got {own!r}")
    if "__dataclass_fields__" not in vars(own) or not own.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # a dataclass's
        raise ValueError(f"{what} must be a dataclass of its own: put @dataclass(frozen=True, kw_only=True) above it")
    kinds = fields.types_of(own)
    infos: dict[str, dataclasses.Field[Any]] = vars(own)["__dataclass_fields__"]
    for info in (infos[name] for name in kinds):
        if "help" not in info.metadata:
            raise ValueError(f"{what}: {info.name} has no meaning; make it by opt(default, help)")
        try:
            fields.type_name(kinds[info.name], info)
        except KeyError as error:
            raise ValueError(
                f"{what}: {info.name} is a {kinds[info.name]}; a field is a whole number, a number, true or false, "
                "a text, one of several (Literal), several of them (tuple), or none of it"
            ) from error
    for recipe, values in own.presets.items():
        wrong = [key for key in values if "." not in key and key not in kinds]
        if wrong or "default" not in own.presets:
            raise ValueError(f"{what}.presets: {recipe} sets {wrong}, and `default` must be one of them")


def check_recipe(name: str, recipe: str) -> None:
    """ValueError if the method has no values under that name."""
    presets = settings_of(name).presets
    if recipe not in presets:
        raise ValueError(
            why_gone("method.recipe", recipe)
            or f"unknown recipe {recipe!r}{nearest(recipe, presets)} of {name}: choose from {', '.join(presets)}"
        )


def import_module(where: str) -> str:
    """Import the module, or the .py file, that registers methods of a user's own; its name, a file's in full."""
    if not where.endswith(".py"):
        if where.startswith("."):
            raise ValueError(f"method.module: {where!r} begins with a dot; give a module's full name, or a .py file")
        try:
            importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{where}.".startswith(f"{error.name}."):
                raise
            raise ValueError(f"method.module: no module {where!r}; give one, or a file that ends in .py") from error
        return where
    file = Path(where).resolve()
    name = f"fastget_methods_of{file.with_suffix('')}".replace(".", "_")
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"method.module: no file {file}: give the place where it is now")
    if name not in sys.modules:
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        before = dict(_ENTRIES)
        try:
            spec.loader.exec_module(module)
            if all(entry is before.get(known) for known, entry in _ENTRIES.items()):
                raise ValueError(
                    f"method.module: {file} registers no method: end it with methods.register(NAME, CLASS)"
                )
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, ValueError) or not isinstance(error, Exception):
                raise
            raise ValueError(
                f"method.module: {file}{_line_of(error, file)}: {type(error).__name__}: {error}"
            ) from error
    return str(file)


def _line_of(error: Exception, file: Path) -> str:
    """Where in a user's file an error arose, for one who mends it."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f", line {lines[-1]}" if lines else ""


def _entry(name: str) -> RegisteredMethod:
    if name not in _ENTRIES:
        raise ValueError(f"unknown method {name!r}{nearest(name, _ENTRIES)}: choose from {', '.join(_ENTRIES)}")
    return _ENTRIES[name]
