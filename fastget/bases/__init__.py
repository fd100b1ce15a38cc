"""Base models: who owns a step's forward pass. This is their registry; a base is imported when it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastget.bases.base import Base

_BASES = {"plain": "fastget.bases.plain:Plain"}


def names() -> tuple[str, ...]:
    """All base models, the default first."""
    return tuple(_BASES)


def base_of(name: str) -> type[Base]:
    """A base model's class, imported now."""
    module, _, cls = _BASES[name].partition(":")
    found: type[Base] = getattr(importlib.import_module(module), cls)
    return found
