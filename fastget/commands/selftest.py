"""`fastget selftest`: what was verified elsewhere, proved on this machine."""

from __future__ import annotations

import argparse

from fastget.commands.options import add_json

HELP = "prove on this machine that what was verified elsewhere holds here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget selftest`."""
    parser.description = (
        "Compare, on this machine and its device, the kernels with plain PyTorch in float64, the loaders with one "
        "another, and a short training run with itself. A row a check; exit code 1 if one fails."
    )
    parser.add_argument("--device", default="auto", help="auto (the GPU if there is one), cpu, cuda or cuda:n")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 1 if a check failed. ValueError is for a device that is not there."""
    from fastget.selftest.table import selftest

    return selftest(device=args.device, as_json=args.json)
