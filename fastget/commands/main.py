"""The command `fastget`. Exit codes: 0 done, 1 the job found something wrong, 2 wrong usage or bad input;
128 + n when signal n stopped it: a run is saved then and can go on (if it could not be saved: 1)."""

from __future__ import annotations

import argparse
import io
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from fastget import __version__
from fastget.commands.output import OutputFailed, guarded, say
from fastget.commands.usage import Parser
from fastget.common.errors import Interrupted, RunFailed
from fastget.common.signals import number_of, raising

# as a user meets them; each is a file beside this one
GROUPS = {
    "start": ("demo", "data", "plan"),
    "run": ("train", "compare", "sweep", "reproduce", "features"),
    "look": ("report", "eval"),
    "use": ("predict", "export"),
    "machine": ("doctor", "selftest", "tune"),
}
COMMANDS = tuple(name for group in GROUPS.values() for name in group)


def main(argv: Sequence[str] | None = None) -> int:
    """The command `fastget`; its exit code."""
    return answered(lambda words: build_parser(next(iter(words), "")), argv)


def answered(parser_of: Callable[[Sequence[str]], argparse.ArgumentParser], argv: Sequence[str] | None) -> int:
    """Runs what the parser of these words chooses; the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal's encoding lacks is shown escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        with raising(), guarded():
            args = parser_of(words).parse_args(words)
            code: int = args.run(args)
    except ValueError as error:
        return _complain(str(error), 2)
    except RunFailed as error:
        return _complain(str(error), 1)
    except Interrupted as stop:
        return _complain(str(stop), 128 + stop.number)
    except KeyboardInterrupt as stop:
        number = number_of(stop)
        return _complain(str(Interrupted(number, "")), 128 + number)
    except OutputFailed as error:
        return 128 + signal.SIGPIPE if error.closed else _complain(str(error), 1)
    return code


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of one command; of all of them, with a line about each, where none of them is named."""
    one = command in COMMANDS
    parser = Parser(
        prog="fastget",
        usage="fastget [-h] [--version] COMMAND ...",
        description="Adapt an image classifier to a new domain." + ("" if one else _listed()),
        epilog="Start with `fastget train`: it adapts from rendered to handwritten digits in about a minute. "
        "`fastget COMMAND --help` tells more of each.",
    )
    parser.add_argument("--version", action="version", version=f"fastget {__version__}")
    commands = parser.add_subparsers(prog="fastget", metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    for name in (command,) if one else COMMANDS:
        module = import_module(f"fastget.commands.{name}")
        own_help = getattr(module, "add_help", None)  # a command may have a --help of its own
        sub = commands.add_parser(name, add_help=own_help is None)
        if one:
            if own_help is not None:
                own_help(sub)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def _listed() -> str:
    """The commands by group, a line about each, as the help shows them."""
    lines = [""]
    for group, names in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {name:<9}  {import_module(f'fastget.commands.{name}').HELP}" for name in names]
    return "\n".join(lines)


def _complain(text: str, code: int) -> int:
    say(text, "[bold red]fastget:[/] ")
    return code


if __name__ == "__main__":
    sys.exit(main())
