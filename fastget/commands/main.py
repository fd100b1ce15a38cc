"""The command `fastget`. Exit codes: 0 done, 1 the job found something wrong, 2 wrong usage or bad input;
128 + n when signal n stopped a run, which is saved and can go on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from rich.console import Console
from rich.markup import escape

from fastget.common.errors import Interrupted, RunFailed

# each is a file beside this one
COMMANDS = (
    "train", "compare", "sweep", "demo", "report", "card", "predict", "eval", "export", "data", "features", "selftest",
    "doctor",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """The command `fastget`; its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        args = build_parser(next(iter(words), "")).parse_args(words)
        code: int = args.run(args)
    except ValueError as error:
        return _complain(str(error), 2)
    except RunFailed as error:
        return _complain(str(error), 1)
    except Interrupted as stop:
        return _complain(str(stop), 128 + stop.number)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    return code


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of one command; of all of them, with a line about each, where none of them is named."""
    parser = argparse.ArgumentParser(
        prog="fastget",
        description="Adapt an image classifier to a new domain.",
        epilog="Start with `fastget train`: it adapts from rendered to handwritten digits in about a minute.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in (command,) if command in COMMANDS else COMMANDS:
        module = import_module(f"fastget.commands.{name}")
        one = commands.add_parser(name, help=module.HELP)
        if name == command:
            module.add_arguments(one)
            one.set_defaults(run=module.run)
    return parser


def _complain(text: str, code: int) -> int:
    Console(stderr=True).print(f"[bold red]fastget:[/] {escape(text)}", highlight=False, soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
