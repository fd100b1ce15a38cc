"""A run's configuration: its sections, the values that belong to a data set, and how both are read. No torch here."""

from fastget.config.config import Config, changed, fields_of, walk
from fastget.config.parse import (
    describe_type,
    every_section,
    free_fields,
    make_config,
    parse_pairs,
    parse_settings,
    without_preset,
)
from fastget.config.presets import PRESETS
from fastget.config.sections import DataConfig, MethodConfig, NetworkConfig, OptimConfig, TrainConfig

__all__ = [
    "PRESETS",
    "Config",
    "DataConfig",
    "MethodConfig",
    "NetworkConfig",
    "OptimConfig",
    "TrainConfig",
    "changed",
    "describe_type",
    "every_section",
    "fields_of",
    "free_fields",
    "make_config",
    "parse_pairs",
    "parse_settings",
    "walk",
    "without_preset",
]
