"""Base models: who owns a step's forward pass. This is their registry; a base is imported when it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

from fastget.bases import settings

if TYPE_CHECKING:
    from fastget.bases.base import Base


class RegisteredBase(NamedTuple):
    """What is known of a base model before it is imported."""

    settings: type[settings.BaseSettings]  # its section of the configuration
    base: str  # module:Class


_ENTRIES = {
    "plain": RegisteredBase(settings.PlainSettings, "fastget.bases.plain:Plain"),
    "cdan": RegisteredBase(settings.CDANSettings, "fastget.bases.cdan:CDAN"),
    "mixmatch": RegisteredBase(settings.MixMatchSettings, "fastget.bases.mixmatch:MixMatch"),
}
DEFAULT = "plain"


def names() -> tuple[str, ...]:
    """All base models, the default first."""
    return tuple(_ENTRIES)


def settings_of(name: str) -> type[settings.BaseSettings]:
    """The section of the configuration that a base model owns."""
    return _ENTRIES[name].settings


def base_of(name: str) -> type[Base]:
    """A base model's class, imported now."""
    module, _, cls = _ENTRIES[name].base.partition(":")
    found: type[Base] = getattr(importlib.import_module(module), cls)
    return found
