"""Options that several commands have: those that stand for fields of the configuration, and what is said in JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from fastget.config import parse_pairs


class Adds(Protocol):
    """A parser, or a group of its options."""

    def add_argument(self, *names: str, **how: Any) -> argparse.Action: ...


def add_fields(parser: Adds, options: Mapping[str, tuple[str, str]], more: str = "") -> None:
    """option -> (section.field, help)."""
    for option, (field, text) in options.items():
        metavar = option.strip("-").replace("-", "_").upper()
        parser.add_argument(option, dest=field, metavar=metavar, help=text + more)


def add_set(parser: Adds, help: str, field: str = "section.field") -> None:
    parser.add_argument("--set", action="append", nargs="+", default=[], metavar=f"{field}=value", help=help)


def given_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields that the command line gives, --set last."""
    return {key: value for key, value in vars(args).items() if "." in key and value is not None} | parse_pairs(args.set)


def add_config(parser: Adds) -> None:
    parser.add_argument("--config", metavar="FILE", help="a YAML file of sections, such as a run's own config.yaml")


def add_checkpoint(parser: Adds) -> None:
    parser.add_argument(
        "--checkpoint", required=True, type=Path, metavar="RUN",
        help="a run's folder (its final checkpoint is used, else the newest intact one), or a checkpoint file",
    )  # fmt: skip


def add_json(parser: Adds) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON on standard output")


def print_json(tree: object) -> None:
    """What is no UTF-8 in a name is escaped."""
    print(json.dumps(tree, indent=2, ensure_ascii=False).encode(errors="backslashreplace").decode())
