"""fastget: adapt an image classifier to a new domain. Names are imported when they are first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastget.config import Config, make_config
    from fastget.methods.get.module import RECIPES, GeT
    from fastget.training.train import Result, train

__version__ = "0.2.0"
__all__ = ["RECIPES", "Config", "GeT", "Result", "__version__", "make_config", "train"]

_HOMES = {
    "Config": "fastget.config",
    "make_config": "fastget.config",
    "GeT": "fastget.methods.get.module",
    "RECIPES": "fastget.methods.get.module",
    "Result": "fastget.training.train",
    "train": "fastget.training.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fastget' has no attribute {name!r}")
    import importlib

    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
