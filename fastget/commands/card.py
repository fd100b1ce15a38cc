"""`fastget card`: a model card of a run, for those who get its network."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

HELP = "a model card of a run: Markdown with the metadata that Hugging Face reads"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget card`."""
    parser.description = (
        "A model card from a run's folder: what it was trained on and how, its figures, how to use it. With several "
        "seeds the figures are means. The YAML at its head (license, tags, datasets, model-index) is what Hugging Face "
        "reads."
    )
    parser.add_argument("runs", type=Path, metavar="RUN", help="a run's folder, or that of its seeds")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="the card; default: README.md in RUN")
    parser.add_argument("--name", help="the model's name; default: the data set and the method")
    parser.add_argument(
        "--license", default="unknown", help="an identifier such as mit or cc-by-4.0, which the images may restrict"
    )


def run(args: argparse.Namespace) -> int:
    """Exit code 0. ValueError is for what is no run, or has not ended."""
    if args.out is not None and args.out.suffix.lower() != ".md":
        raise ValueError(f"expected a file whose name ends in .md, got {args.out.name}: change --out")
    from fastget.common.files import write_atomically
    from fastget.report.card import model_card
    from fastget.report.read import find_runs, group

    groups = group(find_runs([args.runs]))
    if len(groups) > 1:
        names = "; ".join(one.name for one in groups[:3])
        raise ValueError(f"{args.runs} holds runs of {len(groups)} kinds ({names} ...): give the folder of one of them")
    out = args.out or args.runs / "README.md"
    try:
        write_atomically(out, model_card(groups[0], name=args.name, license=args.license).encode())
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror or error}; choose another place by --out") from error
    Console(stderr=True).print(f"{out}: {groups[0].name}", highlight=False, markup=False, soft_wrap=True)
    return 0
