"""fastget: GeT domain adaptation of image classifiers."""

from fastget.config import Config, make_config
from fastget.methods.get import RECIPES, GeT
from fastget.training.train import Result, train

__version__ = "0.1.0"
__all__ = ["RECIPES", "Config", "GeT", "Result", "__version__", "make_config", "train"]
