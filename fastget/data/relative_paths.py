"""Relative paths of a configuration, found again from another folder: as given, else where they were given."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from fastget.config import DataConfig


def path_fields(data: DataConfig) -> dict[str, str]:
    """The fields of a data section that are relative paths, and their values."""
    names = ["root", "labelled_target", "validation"]
    names += ["source", "target"] if data.name == "lists" else []
    names += ["cache"] if data.cache not in ("auto", "off") else []
    values = {name: getattr(data, name) for name in names}
    if data.name == "lists" and data.root is None:
        values["root"] = "."
    return {name: value for name, value in values.items() if value is not None and not os.path.isabs(value)}


def as_found(data: DataConfig) -> tuple[DataConfig, list[str]]:
    """The section with the paths that are not here, but were where the run was started, taken from there; a line for
    people on each."""
    if data.started_in is None:
        return data, []
    there = {name: os.path.join(data.started_in, value) for name, value in path_fields(data).items()}
    from_here = there.pop("root") if data.root is None and "root" in there else None
    moved = {
        name: place
        for name, place in there.items()
        if not os.path.exists(getattr(data, name)) and os.path.exists(place)
    }
    if from_here is not None and moved:  # without a root, the paths in list files start where the lists were named
        moved["root"] = data.started_in
    notes = [f"data.{name}: {getattr(data, name) or '.'} is not here, {place} is used" for name, place in moved.items()]
    changed: dict[str, Any] = dict(moved)
    return dataclasses.replace(data, **changed), notes


def with_start(data: DataConfig) -> DataConfig:
    """The section that says where its relative paths are: here, or where they were given before if they are there."""
    if not path_fields(data):
        return data
    kept = data.started_in if as_found(data)[1] else None
    return dataclasses.replace(data, started_in=kept or os.getcwd())
