"""`fastget train`: train and adapt, and save the run."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fastget import bases, methods
from fastget.commands import usage
from fastget.commands.options import add_config, add_fields, add_set, given_fields
from fastget.common.signals import stopping
from fastget.common.text import nearest
from fastget.config import describe_type, every_section, fields_of, make_config

HELP = "train and adapt; with no arguments: the default method on the embedded digits"
SHORTHANDS = {  # option -> (field, help)
    "--data": (
        "data.name",
        "data set: digits (default), office-home ... (`fastget data list`), folder, lists or features",
    ),
    "--root": ("data.root", "folder that the images lie in, or the one that `fastget features` made"),
    "--source": ("data.source", "labelled domain: a folder's name, or a list file"),
    "--target": ("data.target", "domain to adapt to: a folder's name, or a list file"),
    "--setting": ("data.setting", "protocol: uda (default), pda or ssda"),
    "--bad-images": ("data.bad_images", "unreadable images: error (stop) or skip (leave them out)"),
    "--method": ("method.name", f"one of {', '.join(methods.names())}"),
    "--base": ("method.base", f"the base model: one of {', '.join(bases.names())}"),
    "--preset": ("train.preset", "quick: a first answer in minutes on a laptop, and what the full run would cost"),
    "--seeds": ("train.seeds", "one run for each, e.g. 0,1,2"),
    "--select": (
        "train.select",
        "also keep the best checkpoint by a label-free criterion, or by ssda's validation list (see train.select)",
    ),
    "--out": ("train.out", "the run's folder; default: a new one under runs/"),
}


GROUPS = {  # of the options, in the order of the help
    "data": ("--data", "--root", "--source", "--target", "--setting", "--bad-images"),
    "method": ("--method", "--base", "--recipe"),
    "run": ("--preset", "--seeds", "--select", "--out"),
}
COLUMN = 32  # where the meaning of a field begins


def add_help(parser: argparse.ArgumentParser) -> None:
    """--help, of all or of one section of the fields."""
    parser.add_argument(
        "-h", "--help", action=SectionHelp, nargs="?", metavar="SECTION",
        help="show this help and exit; with a section (data, optim, get ...) its fields alone",
    )  # fmt: skip


class SectionHelp(argparse.Action):
    """The help of the command, or of one section."""

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> None:
        section = given[1]
        sections = [name for name, kind in every_section().items() if fields_of(kind)]
        if section is None:
            parser.print_help()
        elif section in sections:
            print("\n".join(describe_section(section, usage.width())))
        else:
            parser.error(f"no section {section!r}{nearest(section, sections)}: choose from {', '.join(sections)}")
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget train`; the help lists the fields of a method of one's own too."""
    for word in sys.argv:
        if word.startswith("method.module="):
            methods.import_module(word.partition("=")[2])
    parser.description = (
        "Train on the source, adapt to the target, and save the run. "
        "With no arguments: the default method, from rendered to handwritten digits."
    )
    parser.epilog = _describe_fields()
    shorthands = {**SHORTHANDS, "--recipe": ("method.recipe", f"the method's values under a name: {_recipes()}")}
    groups = {name: parser.add_argument_group(name) for name in GROUPS}
    for name, options in GROUPS.items():
        add_fields(groups[name], {option: shorthands[option] for option in options})
    groups["run"].add_argument(
        "--resume", nargs="?", const="auto", dest="train.resume", metavar="auto",
        help="go on from the newest intact checkpoint in --out",
    )  # fmt: skip
    groups["run"].add_argument(
        "--profile", action="store_const", const=True, dest="train.profile", help="print where a step's time goes"
    )
    settings = parser.add_argument_group("settings")
    add_config(settings)
    add_set(settings, "any field listed below")


def run(args: argparse.Namespace) -> int:
    """Exit code 0. ValueError is for wrong usage."""
    config = make_config(settings_of(args), file=args.config)  # a mistake is reported before torch loads
    from fastget.training.train import train

    with stopping("at once: the newest checkpoint is kept, if there is one; go on with --resume auto"):
        train(config)
    return 0


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """The fields that the command line gives, --set last."""
    given = given_fields(args)
    empty = [option for option, (field, _) in SHORTHANDS.items() if vars(args).get(field) == ""]
    if empty:  # as a field it would mean none, and a run would go elsewhere than was meant
        raise ValueError(f"{empty[0]} is empty (a variable that is not set?): give it a value, or leave it out")
    return given


def _describe_fields() -> str:
    """Every field of the configuration: type, default, meaning."""
    lines = [
        "fields for --set and --config (defaults in brackets; data sets and methods have presets of their own; "
        "`fastget train --help SECTION` shows one section):"
    ]
    for section, kind in every_section().items():
        if fields_of(kind):
            lines += ["", *describe_section(section, usage.width(), "  ")]
    return "\n".join(lines)


def describe_section(section: str, room: int, indent: str = "") -> list[str]:
    """A section's fields in lines of `room` columns."""
    kind = every_section()[section]
    lines = usage.fitted(f"{section}: {' '.join((kind.__doc__ or '').split())}", room - len(indent))
    lines = [indent + line for line in lines]
    for info in fields_of(kind).values():
        key, value = f"{section}.{info.name}", info.default
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else "none" if value is None else str(value)
        text = " ".join(f"{info.metadata['help']} ({describe_type(key)})".split())
        lines += usage.entry(f"{indent}  {key} [{shown}]", text, COLUMN, room)
    return lines


def _recipes() -> str:
    """The recipes of each method that has more than one."""
    presets = {name: list(methods.settings_of(name).presets) for name in methods.names()}
    return "; ".join(f"{name}: {', '.join(found)}" for name, found in presets.items() if len(found) > 1)
