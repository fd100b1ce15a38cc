"""Fields of a configuration: a type, a default, a line of meaning and a range, said once and checked everywhere.

A section is a frozen dataclass whose fields are made by `opt`. `convert` reads a value as people write it (YAML, the
command line), `check` looks at the values of a section however it was made. No torch here: configurations are light.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fastget.common.text import nearest

Choices = Callable[[], Sequence[str]]  # asked when they are needed: a registry may have grown


def opt(
    default: Any,
    help: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    choices: Choices | None = None,  # of a text, where they are not known when the class is made
    free: bool = False,  # whether it may differ when a run goes on: the trajectory does not depend on it
    was: Any = dataclasses.MISSING,  # what a run did before there was this field; left out: the default
) -> Any:
    """A field with its meaning and its range."""
    was = default if was is dataclasses.MISSING else was
    metadata = {"help": help, "ge": ge, "gt": gt, "le": le, "choices": choices, "free": free, "was": was}
    return dataclasses.field(default=default, metadata=metadata)


class Mismatch(Exception):
    """A value that does not fit its field; the text is a hint, or empty."""


def types_of(section: Any) -> dict[str, Any]:
    """Field -> type of a section."""
    hints = get_type_hints(section)
    return {info.name: hints[info.name] for info in dataclasses.fields(section)}


def type_name(kind: Any, info: dataclasses.Field[Any] | None = None) -> str:
    """A type in a reader's words."""
    choices = info.metadata["choices"] if info is not None else None
    origin = get_origin(kind)
    if choices is not None:
        return "one of " + ", ".join(choices())
    if origin in (Union, types.UnionType):
        return " or ".join("none" if a is type(None) else type_name(a) for a in get_args(kind))
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if origin is tuple:
        return {int: "whole numbers", float: "numbers", str: "texts"}[get_args(kind)[0]] + " separated by commas"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]


def spelled_out(made: Any, section: Any) -> inspect.Signature:
    """The arguments of a class whose last one is **values of a section, as help() shows them: those of the section, one
    by one, in its place."""
    *given, _ = inspect.signature(made).parameters.values()
    first = [p for p in given if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    own = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in dataclasses.fields(section)
    ]
    return inspect.Signature([*first, *own, *given[len(first) :]])


# --- reading a value -----------------------------------------------------------------------------


def convert(kind: Any, value: Any, info: dataclasses.Field[Any] | None = None) -> Any:
    """`value` (from YAML, Python or the command line) as `kind`. Raises Mismatch."""
    choices = info.metadata["choices"] if info is not None else None
    if choices is not None and value not in choices():
        raise Mismatch(nearest(str(value), choices()))
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value in (None, "none", "null", ""):
            return None
        (inner,) = (a for a in get_args(kind) if a is not type(None))
        return convert(inner, value)
    if origin is Literal:
        if value in get_args(kind):
            return value
        if value is False and "no" in get_args(kind):  # YAML reads a bare `no` as false, `yes` as true
            return "no"
        if value is True and "yes" in get_args(kind):
            return "yes"
        raise Mismatch(nearest(str(value), [str(a) for a in get_args(kind)]))
    if origin is tuple:
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
        return tuple(convert(get_args(kind)[0], part.strip() if isinstance(part, str) else part) for part in parts)
    if isinstance(value, str) and kind is not str:
        return _from_text(kind, value)
    if kind is float and _is_number(value):
        return float(value)
    if kind is int and _is_number(value) and isinstance(value, Integral):
        return int(value)
    if kind is str and value is not None and not isinstance(value, (str, dict, list)):
        return str(value)
    if type(value) is not kind:
        raise Mismatch("")
    return value


WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _from_text(kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() not in WORDS:
            raise Mismatch("")
        return WORDS[text.lower()]
    try:
        return kind(text)
    except ValueError as error:
        raise Mismatch("") from error


def _is_number(value: object) -> bool:
    """numpy's numbers are numbers too; true and false are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


# --- checking a section --------------------------------------------------------------------------


def check(section: Any, prefix: str = "") -> None:
    """Types and ranges of a section's values, however it was made; numpy's numbers become Python's. ValueError names
    the field after `prefix`."""
    kinds = types_of(type(section))
    for info in dataclasses.fields(section):
        value, kind = getattr(section, info.name), kinds[info.name]
        try:
            if _in_words(kind, value):
                raise Mismatch("")  # a number in words is for the command line
            found = convert(kind, value, info)
        except (Mismatch, OverflowError) as error:
            hint = error if isinstance(error, Mismatch) else ""
            raise ValueError(f"{prefix}{info.name} must be {type_name(kind, info)}, got {value!r}{hint}") from error
        if found is not None:
            check_range(f"{prefix}{info.name}", info, found)
        object.__setattr__(section, info.name, found)  # a section is frozen once it is checked


def _in_words(kind: Any, value: Any) -> bool:
    """Whether a text stands for what is no text, alone or among several."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(item, str) for item in items) and not _holds_text(kind)


def _holds_text(kind: Any) -> bool:
    return kind is str or get_origin(kind) is Literal or any(_holds_text(inner) for inner in get_args(kind))


def check_range(key: str, info: dataclasses.Field[Any], value: Any) -> None:
    """ValueError unless the value, or each of several, lies in its field's range."""
    ge, gt, le = (info.metadata[bound] for bound in ("ge", "gt", "le"))
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, (bool, str)):
            continue
        if (
            not math.isfinite(item)
            or (ge is not None and item < ge)
            or (gt is not None and item <= gt)
            or (le is not None and item > le)
        ):
            bounds = ["" if math.isfinite(item) else "a finite number"]
            bounds += [f"at least {ge}" if ge is not None else "", f"above {gt}" if gt is not None else ""]
            bounds += [f"at most {le}" if le is not None else ""]
            raise ValueError(f"{key} must be {' and '.join(b for b in bounds if b)}, got {item}")
