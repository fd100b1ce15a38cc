"""`fastget report`: one page of a run's figures, or of several runs together."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

HELP = "one HTML page of a run, or of several: curves, classes, features, images, time; or a model card"
EPILOG = """\
examples:
  fastget report RUN                                # RUN/report.html
  fastget report runs/get runs/source-only --out both.html      # curves together, each looked at closely
  fastget report runs/compare-digits --figures FIGURES          # a study's runs; every figure as PNG and PDF too
  fastget report RUN --card                         # in place of the page, a model card: RUN/README.md

A RUN is a run's folder, one of several seeds, or one that holds runs at any depth (a study's). Runs that differ in
nothing but the seed are one line with its std. The page needs no network and no other file. Without target labels it
shows what can be said without them.

A card is for those who get the run's network: what it was trained on and how, its figures, how to use it. With several
seeds the figures are means. The YAML at its head (license, tags, datasets, model-index) is what Hugging Face reads."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget report`."""
    parser.description, parser.epilog = "A run's report: one self-contained HTML page.", EPILOG
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.html", help="the page; default: report.html in RUN, or here for several"
    )
    parser.add_argument("--figures", type=Path, metavar="DIR", help="also draw every figure there, as PNG and as PDF")
    parser.add_argument(
        "--projection",
        choices=["auto", "umap", "tsne", "pca"],
        default="auto",
        help="of the features: UMAP where umap-learn is installed, else t-SNE (auto)",
    )
    parser.add_argument("--root", type=Path, help="folder that the images lie in; default: where the run found them")
    parser.add_argument(
        "--closer", type=int, metavar="N", help="how many groups of runs to look at closely (default: 6)"
    )
    card = parser.add_argument_group("a model card")
    card.add_argument("--card", nargs="?", type=Path, const=Path(), metavar="FILE.md",
                      help="write it in place of the page; default: README.md in RUN")  # fmt: skip
    card.add_argument("--name", help="the model's name; default: the data set and the method")
    card.add_argument("--license", help="an identifier such as mit or cc-by-4.0, which the images may restrict")


def run(args: argparse.Namespace) -> int:
    """Exit code 0. ValueError is for wrong usage, and for what is no run."""
    if args.card is not None:
        return _card(args)
    if args.name is not None or args.license is not None:
        raise ValueError("--name and --license are a model card's: give --card too")
    if args.closer is not None and args.closer < 0:
        raise ValueError(f"--closer must be at least 0, got {args.closer}")
    if args.out is not None and args.out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"expected a file whose name ends in .html, got {args.out.name}: change --out")
    if args.figures is not None and args.figures.exists() and not args.figures.is_dir():
        raise ValueError(f"--figures {args.figures} is a file: name a folder")
    from fastget.common.text import counted
    from fastget.report.page import DETAILED, make_report, write_page
    from fastget.report.read import find_runs, group

    console = Console(stderr=True)
    groups = group(find_runs(args.runs))
    with console.status("drawing") as status:
        report = make_report(
            groups,
            projection=args.projection,
            root=args.root,
            detailed=DETAILED if args.closer is None else args.closer,
            working_on=lambda name: status.update(f"drawing {name}"),
        )
        out = args.out or (args.runs[0] if len(args.runs) == 1 else Path()) / "report.html"
        write_page(report, out)
        drawn = 0
        if args.figures is not None:
            from fastget.report.plots import draw_all

            drawn = draw_all(report, args.figures)
    count = counted(sum(len(g.runs) for g in groups), "run")
    console.print(f"{out}: {count}", highlight=False, markup=False, soft_wrap=True)
    if drawn:
        console.print(f"{args.figures}: {drawn} figures", highlight=False, markup=False, soft_wrap=True)
    return 0


def _card(args: argparse.Namespace) -> int:
    drawn = {"--out": args.out, "--figures": args.figures, "--closer": args.closer, "--root": args.root}
    if more := [option for option, value in drawn.items() if value is not None]:
        raise ValueError(f"{more[0]} is the page's, and --card writes no page: leave it out; --card FILE.md says where")
    out = args.card if args.card.name else (args.runs[0] if len(args.runs) == 1 else Path()) / "README.md"
    if out.suffix.lower() != ".md":
        raise ValueError(f"expected a file whose name ends in .md, got {out.name}: change --card")
    from fastget.common.files import write_atomically, writing
    from fastget.report.card import model_card
    from fastget.report.read import find_runs, group

    groups = group(find_runs(args.runs))
    if len(groups) > 1:
        names = "; ".join(one.name for one in groups[:3])
        places = ", ".join(map(str, args.runs))
        raise ValueError(f"{places} holds runs of {len(groups)} kinds ({names} ...): give the folder of one of them")
    with writing(out, "choose another place by --card"):
        write_atomically(out, model_card(groups[0], name=args.name, license=args.license or "unknown").encode())
    Console(stderr=True).print(f"{out}: {groups[0].name}", highlight=False, markup=False, soft_wrap=True)
    return 0
