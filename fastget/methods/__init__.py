"""Methods: what adds the target's term to the loss. This is their registry: names, and where each one is.

    "mcc": Entry(settings.MCC, "fastget.methods.mcc:MCC")

A method's module is imported when the method is used, so that a configuration is read without torch. A method of your
own joins with one line, `fastget.methods.register("name", YourMethod)`; CONTRIBUTING.md has a worked example.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastget.common.text import nearest
from fastget.methods import settings

if TYPE_CHECKING:
    from fastget.methods.base import Method


class Entry(NamedTuple):
    """What is known of a method before it is imported."""

    settings: type[Any]  # its section of the configuration
    method: str | type[Method]  # module:Class, or the class itself


_ENTRIES: dict[str, Entry] = {
    "get": Entry(settings.Get, "fastget.methods.get.method:GetMethod"),
    "source-only": Entry(settings.SourceOnly, "fastget.methods.source_only:SourceOnly"),
    "mcc": Entry(settings.MCC, "fastget.methods.mcc:MCC"),
    "atdoc-na": Entry(settings.AtdocNA, "fastget.methods.atdoc_na:AtdocNA"),
}
_TAKEN = ("data", "network", "method", "optim", "train")  # the other sections of a configuration


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
    """Let `method.name=NAME` mean this class. Raises ValueError if it is not a method, or the name is taken."""
    from torch import nn

    from fastget.methods.base import Method

    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ValueError(f"register({name!r}, ...) takes a subclass of fastget.methods.base.Method, got {method!r}")
    if method.forward is nn.Module.forward:
        raise ValueError(f"{method.__name__} has no forward(seen): it is where the target's term is made")
    own = getattr(method, "Config", None)
    if not (isinstance(own, type) and issubclass(own, settings.Settings) and dataclasses.is_dataclass(own)):
        raise ValueError(f"{method.__name__}.Config must be a frozen dataclass that inherits from Settings")
    bare = [info.name for info in dataclasses.fields(own) if "help" not in info.metadata]
    if bare:
        raise ValueError(f"{method.__name__}.Config: {bare[0]} has no meaning; make it by opt(default, help)")
    if name in _TAKEN or (name in _ENTRIES and not _same(_ENTRIES[name].method, method)):
        raise ValueError(f"the name {name!r} is taken: choose another one for {method.__name__}")
    if not name or set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-_"):
        raise ValueError(f"a method's name is made of small letters, digits, - and _, got {name!r}")
    _ENTRIES[name] = Entry(own, method)


def import_module(where: str) -> None:
    """Import the module, or the file, that registers methods of a user's own."""
    if not where.endswith(".py"):
        try:
            importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is None or not where.startswith(error.name):
                raise
            raise ValueError(
                f"method.module: no module {where!r}; give a module, or a file that ends in .py"
            ) from error
        return
    file = Path(where).resolve()
    name = f"fastget_methods_of{file.with_suffix('')}".replace(".", "_")
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"method.module: no file {where}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _entry(name: str) -> Entry:
    if name not in _ENTRIES:
        raise ValueError(f"unknown method {name!r}{nearest(name, _ENTRIES)}: choose from {', '.join(_ENTRIES)}")
    return _ENTRIES[name]


def _same(one: str | type[Method], other: type[Method]) -> bool:
    """Whether a class is the one that was registered, perhaps before its module was loaded again."""
    return not isinstance(one, str) and (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)
