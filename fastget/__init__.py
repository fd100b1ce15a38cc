"""fastget: adapt an image classifier to a new domain.

What is public is imported when it is first asked for (PEP 562): torch takes a second or more, and neither
`fastget --help` nor a check of image files, nor each of its workers, needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastget.config import Config, make_config
    from fastget.methods.get.module import RECIPES, GeT
    from fastget.training.train import Result, train

__version__ = "0.3.0"
__all__ = ["RECIPES", "Config", "GeT", "Result", "__version__", "make_config", "train"]

_HOMES = {
    "Config": "fastget.config",
    "make_config": "fastget.config",
    "GeT": "fastget.methods.get.module",
    "RECIPES": "fastget.methods.get.module",
    "Result": "fastget.training.train",
    "train": "fastget.training.train",
}

_ROOMS = ("config", "kernels", "methods", "reference")  # fastget.methods after a bare `import fastget`


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value
    if name in _ROOMS:
        return import_module(f"fastget.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
