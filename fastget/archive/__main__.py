"""`python -m fastget.archive`, for those who keep the repository: results as data, and the tables that pages show."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fastget.archive.statistics import METRICS
from fastget.commands.main import answered
from fastget.commands.usage import Parser

EPILOG = """\
examples:
  python -m fastget.archive add runs/compare-digits       # into results/DATA/SETTING/METHOD.json
  python -m fastget.archive tables                        # README.md and docs/, between <!-- results: ... -->
  python -m fastget.archive tables --check                # exit code 1 if a page is not as the results have it
  python -m fastget.archive plot digits/uda --out digits.png   # as `fastget compare` draws them

A study's own folder has the same files under results/. Each is checked as it is read: the sums are done again."""


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The arguments of `python -m fastget.archive`."""
    parser = Parser(
        prog="python -m fastget.archive",
        description="Results as data: one JSON file for each data set, setting and method.",
        epilog=EPILOG,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    add = actions.add_parser("add", help="copy the results of studies into a folder of results")
    add.add_argument("studies", nargs="+", type=Path, metavar="STUDY", help="--out of a compare, reproduce or demo")
    add.add_argument("--data", help="the data set's name, where the study's runs do not tell it")
    add.add_argument("--metric", choices=METRICS, help="the headline's; default: the data set's own")
    add.add_argument("--replace", action="store_true", help="replace results that are there and differ")
    tables = actions.add_parser("tables", help="make the tables of pages anew")
    tables.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: README.md and docs/**/*.md")
    tables.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page would change")
    plot = actions.add_parser("plot", help="draw them, a panel for each data set and setting")
    plot.add_argument("places", metavar="DATA/SETTING[,...]", help="digits/uda,digits/pda, say")
    plot.add_argument("--out", type=Path, default=Path("results.png"), help="the picture (results.png)")
    for one in (add, tables, plot):
        one.add_argument("--results", type=Path, default=Path("results"), help="the folder of results (results)")
    for one, run in ((add, _add), (tables, _tables), (plot, _plot)):
        one.set_defaults(run=run)
    return parser


def _add(args: argparse.Namespace) -> int:
    from fastget.archive import record
    from fastget.archive.collect import of_study

    found = [one for study in args.studies for one in of_study(study, args.data, args.metric)]
    if not found:
        raise ValueError(f"{', '.join(map(str, args.studies))}: no row has all its tasks done; go on with the study")
    places = [one.place for one in found]
    twice = [place for place in dict.fromkeys(places) if places.count(place) > 1]
    if twice:
        raise ValueError(f"two of these studies have a result {twice[0]}: add one of them")
    for one in [] if args.replace else found:
        file = args.results / one.place
        if file.is_file() and file.read_text(encoding="utf-8") != one.text():
            raise ValueError(f"{file} is there and differs: --replace puts the new one in its place")
    record.write(args.results, found)
    for one in found:
        assert one.ours is not None
        print(f"{args.results / one.place}: {one.ours:.1f} (n = {one.n})")
    return 0


def _tables(args: argparse.Namespace) -> int:
    from fastget.archive.leaderboard import fill, filled, pages
    from fastget.archive.record import read_all

    chosen = args.pages or pages(Path())
    if not chosen:
        raise ValueError("no page here shows results: README.md and docs/ have no <!-- results: ... -->")
    if not args.check:
        for page in chosen:
            print(f"{page}: {'made anew' if fill(page, args.results) else 'as it was'}")
        return 0
    records = read_all(args.results)
    texts = {page: page.read_text(encoding="utf-8") for page in chosen}
    stale = [page for page, text in texts.items() if filled(text, records, str(page)) != text]
    for page in stale:
        print(f"{page} is not as {args.results} has it: run `python -m fastget.archive tables`")
    return 1 if stale else 0


def _plot(args: argparse.Namespace) -> int:
    from fastget.archive.leaderboard import panels
    from fastget.archive.plots import draw_panels
    from fastget.archive.record import read_all
    from fastget.archive.statistics import words

    records = read_all(args.results)
    drawn = panels(args.places, records)
    metrics = dict.fromkeys(words(one.metric) for one in records if f"{one.data}/{one.setting}" in drawn)
    print(f"written: {draw_panels(drawn, ' or '.join(metrics), args.out)}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 1 if --check found something; the others are those of `fastget`."""
    return answered(build_parser, argv)


if __name__ == "__main__":
    sys.exit(main())
