"""fastget: GeT domain adaptation of image classifiers."""

from fastget.get import RECIPES, GeT

__version__ = "0.1.0"
__all__ = ["RECIPES", "GeT", "__version__"]
