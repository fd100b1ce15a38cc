"""The command line. Exit codes: 0 done, 1 the job found something wrong, 2 wrong usage or bad input;
128 + n when signal n stopped a run, which is saved and can go on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fastget import methods
from fastget.commands import data as data_cli
from fastget.commands import eval as eval_cli
from fastget.commands import export as export_cli
from fastget.commands import predict as predict_cli
from fastget.config import describe_type, every_section, fields_of, make_config, parse_pairs
from fastget.selftest import table as selftest
from fastget.training.engine import RunFailed
from fastget.training.loop import Interrupted

SHORTHANDS = {  # option -> (field, help)
    "--data": ("data.name", "data set: digits (default), office-home ... (`fastget data list`), folder or lists"),
    "--root": ("data.root", "folder that the images lie in"),
    "--source": ("data.source", "labelled domain: a folder's name, or a list file"),
    "--target": ("data.target", "domain to adapt to: a folder's name, or a list file"),
    "--setting": ("data.setting", "protocol: uda (default), pda or ssda"),
    "--bad-images": ("data.bad_images", "unreadable images: error (stop) or skip (leave them out)"),
    "--method": ("method.name", f"one of {', '.join(methods.names())}"),
    "--seeds": ("train.seeds", "one run for each, e.g. 0,1,2"),
    "--select": (
        "train.select",
        "also keep the best checkpoint by a label-free criterion (see train.select)",
    ),
    "--out": ("train.out", "the run's folder; default: a new one under runs/"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command `fastget`; its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
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


def _complain(text: str, code: int) -> int:
    Console(stderr=True).print(f"[bold red]fastget:[/] {_escape(text)}", highlight=False, soft_wrap=True)
    return code


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fastget",
        description="Adapt an image classifier to a new domain with GeT.",
        epilog="Start with `fastget train`: it adapts from rendered to handwritten digits in about a minute.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_demo(commands)
    for name, module in (("predict", predict_cli), ("eval", eval_cli), ("export", export_cli)):
        command = commands.add_parser(name, help=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    data = commands.add_parser("data", help="data sets: list, show, check, pack")
    data_cli.add_arguments(data)
    data.set_defaults(run=data_cli.run)
    tests = commands.add_parser("selftest", help="prove on this machine that what was verified elsewhere holds here")
    selftest.add_arguments(tests)
    tests.set_defaults(run=selftest.run)
    doctor = commands.add_parser("doctor", help="what this machine has, and what fastget will use")
    doctor.set_defaults(run=_run_doctor)
    return parser


# --- train ---------------------------------------------------------------------------------------


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="train and adapt; with no arguments: GeT on the embedded digits",
        description="Train on the source, adapt to the target, and save the run. "
        "With no arguments: GeT from rendered to handwritten digits.",
        epilog=_describe_fields(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    train.add_argument("--config", metavar="FILE", help="a YAML file of sections, such as a run's own config.yaml")
    train.add_argument("--recipe", default="default", help=f"the method's values under a name: {_recipes()}")
    for option, (field, text) in SHORTHANDS.items():
        train.add_argument(option, dest=field, metavar=option.strip("-").replace("-", "_").upper(), help=text)
    train.add_argument(
        "--resume", nargs="?", const="auto", dest="train.resume", metavar="auto",
        help="go on from the newest intact checkpoint in --out",
    )  # fmt: skip
    train.add_argument(
        "--profile", action="store_const", const=True, dest="train.profile", help="print where a step's time goes"
    )
    train.add_argument(
        "--set", action="append", nargs="+", default=[], metavar="section.field=value", help="any field listed below"
    )
    train.set_defaults(run=_run_train)


def _describe_fields() -> str:
    """Every field of the configuration: type, default, meaning."""
    lines = ["fields for --set and --config (defaults in brackets; data sets and methods have presets of their own):"]
    for section, kind in every_section().items():
        lines += ["", f"  {section}: {kind.__doc__}"]
        for info in fields_of(kind).values():
            key, value = f"{section}.{info.name}", info.default
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else "none" if value is None else str(value)
            lines.append(f"    {key + ' [' + shown + ']':<38} {info.metadata['help']} ({describe_type(key)})")
    return "\n".join(lines)


def _recipes() -> str:
    """The recipes of each method that has more than one."""
    presets = {name: list(methods.settings_of(name).presets) for name in methods.names()}
    return "; ".join(f"{name}: {', '.join(found)}" for name, found in presets.items() if len(found) > 1)


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """The fields that the command line gives, --set last."""
    given = {key: value for key, value in vars(args).items() if "." in key and value is not None}
    return given | parse_pairs(args.set)


def _run_train(args: argparse.Namespace) -> int:
    from fastget.training.train import train

    train(make_config(settings_of(args), file=args.config, recipe=args.recipe))
    return 0


# --- the others ----------------------------------------------------------------------------------


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="both methods on the digits over three seeds, a table, and a picture")
    demo.add_argument("--out", type=Path, help="folder of the runs and the picture; default: a new one under runs/")
    demo.add_argument("--seeds", default="0,1,2", help="seeds (0,1,2)")
    demo.set_defaults(run=_run_demo)


def _run_demo(args: argparse.Namespace) -> int:
    from fastget.runs.folder import new_folder
    from fastget.studies.demo import demo

    seeds = make_config({"train.seeds": args.seeds}).train.seeds
    return demo(args.out or new_folder(Path("runs/demo")), seeds)


def _run_doctor(args: argparse.Namespace) -> int:
    from fastget.commands.doctor import doctor

    return doctor()


if __name__ == "__main__":
    sys.exit(main())
