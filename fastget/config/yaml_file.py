"""YAML files of settings: sections of fields, read with a limit on what a few lines may stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEEPEST = 10  # a section, a field and a list need three


def read_yaml(file: Path) -> Any:
    """The content; ValueError says why it cannot be read."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read the configuration file {file}: it is no text file, let alone YAML") from error
    except OSError as error:
        raise ValueError(f"cannot read the configuration file {file}: {error.strerror}") from error
    try:
        _refuse_endless(text)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not valid YAML: {error}") from error
    except (ValueError, OverflowError, RecursionError, TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"{file} cannot be read as settings: {error}") from error  # a date that is none, say


def _refuse_endless(text: str) -> None:
    """ValueError for what is nested too deeply, and for names of lists, by which a line may stand for billions."""
    depth, named = 0, set()
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent):
            named.add(event.anchor)
        elif isinstance(event, yaml.AliasEvent) and event.anchor not in named:
            raise ValueError(f"line {line}: *{event.anchor} repeats a section or a list: write it out")
        if depth > DEEPEST:
            raise ValueError(f"line {line} is nested more than {DEEPEST} deep: settings are sections of `field: value`")
