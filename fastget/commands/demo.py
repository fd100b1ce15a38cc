"""`fastget demo`: both methods on the embedded digits."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "both methods on the digits over three seeds, a table, and a picture"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget demo`."""
    parser.description = (
        "Train the baseline and the default method on the embedded digits, from rendered to handwritten ones, once for "
        "each seed; then a table of both and a picture of the accuracy over time. About three minutes on two cores, "
        "and no download. Exit code 1 if it did not gain."
    )
    parser.add_argument("--out", type=Path, help="folder of the runs and the picture; default: a new one under runs/")
    parser.add_argument("--seeds", default="0,1,2", help="seeds (0,1,2)")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 1 if the method did not gain."""
    from fastget.config import make_config
    from fastget.runs.folder import new_folder
    from fastget.studies.demo import demo

    seeds = make_config({"train.seeds": args.seeds}).train.seeds
    return demo(args.out or new_folder(Path("runs/demo")), seeds)
