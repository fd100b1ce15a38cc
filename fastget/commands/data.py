"""`fastget data`: list the known data sets, show what a root holds, check every file, pack a cache."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fastget.commands.options import add_json, print_json
from fastget.commands.output import NOTE, say
from fastget.common.choices import Interpolation
from fastget.common.progress import progress_bar
from fastget.common.signals import stopping
from fastget.common.text import escaped
from fastget.config import make_config
from fastget.data.check.files import CheckReport, check_lists
from fastget.data.contact_sheet import contact_sheet
from fastget.data.datasets import DATA_SETS, NAMES
from fastget.data.decode import MAX_PIXELS, Problem
from fastget.data.domains import count_notes, read_domains
from fastget.data.folders import unreadable, unused_notes
from fastget.data.lists import ImageList, merged
from fastget.data.packed.read import Cache, Encoding, cache_folder
from fastget.data.packed.write import Packing, estimate, pack, verify
from fastget.networks.preprocessing import filled

HELP = "data sets: list, show, check, pack"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of `fastget data`."""
    parser.description = (
        "The data sets that fastget knows, what a folder of yours holds, which of its files cannot be read, and a "
        "cache of resized images."
    )
    commands = parser.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="the data sets known by name, and what a root must hold")
    add_json(listing)

    show = _command(commands, "show", "domains, classes, counts and a contact sheet of two domains")
    show.add_argument("--out", default=None, help="where the contact sheet goes (default: NAME-contact-sheet.png)")

    checking = _command(commands, "check", "decode every file and name the bad ones; exit code 1 if there are any")
    checking.add_argument("--quick", action="store_true", help="look at the ends of each file only, as train does")
    checking.add_argument("--again", action="store_true", help="look at every file, whatever earlier checks found")
    _add_max_pixels(checking)

    packing = _command(commands, "pack", "decode and resize every image once, into a cache that train uses")
    packing.add_argument("--format", choices=["jpeg", "raw"], default="jpeg", help="jpeg: small; raw: fastest")
    packing.add_argument("--resize", type=_positive, help="pixels (default: the backbone's, or the data set's)")
    packing.add_argument("--interpolation", choices=["bilinear", "bicubic"], help="default: the backbone's")
    packing.add_argument("--network", metavar="NAME", help="the backbone to pack for (default: the data set's)")
    packing.add_argument("--quality", type=_quality, default=90, help="of the JPEGs, 1 to 100")
    packing.add_argument("--cache", default="auto", help="folder of the cache; auto: in the root (train: data.cache)")
    packing.add_argument("--bad-images", choices=["error", "skip"], default="error", help="stop, or leave them out")
    _add_max_pixels(packing)
    packing.add_argument("--verify", action="store_true", help="only compare the cache with its checksums")


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
    parser.add_argument(
        "name", metavar="NAME", help=f"one of {', '.join(name for name in NAMES if name != 'features')}"
    )
    parser.add_argument("--root", default=None, help="folder that the images lie in")
    parser.add_argument("--source", default=None, help="a domain, or a list file with `lists`; default: all domains")
    parser.add_argument("--target", default=None, help="another one")
    parser.add_argument("--workers", type=_whole, default=0, help="how many at a time; 0: one per core")
    add_json(parser)
    return parser


def _add_max_pixels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-pixels", type=_positive, default=MAX_PIXELS, help=f"an image of more is bad; default: {MAX_PIXELS}"
    )


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 or more, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _quality(text: str) -> int:
    value = _positive(text)
    if value > 100:
        raise argparse.ArgumentTypeError(f"must be at most 100, got {value}")
    return value


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 1 if bad files or a damaged cache were found. ValueError is for wrong usage."""
    commands = {"list": _list, "show": _show, "check": _check, "pack": _pack}
    return commands[args.data_command](args)


# --- the commands --------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    if args.json:
        print_json({name: dataclasses.asdict(known) for name, known in DATA_SETS.items()})
        return 0
    out = _out()
    for known in DATA_SETS.values():
        out.print(f"[bold]{known.name}[/]  {known.title}")
        counts = ", ".join(f"{domain} {count:,}" for domain, count in known.domains.items())
        out.print(f"  {known.num_classes} classes; images: {counts}; scored by {known.metric.replace('_', ' ')}")
        out.print(f"  under --root: {', '.join(known.tree)}")
        archives = f" ({', '.join(known.archives)})" if known.archives else ""
        out.print(f"  from: {known.publisher}{archives}\n")
    out.print("[bold]folder[/]  any ROOT/DOMAIN/CLASS/image; --source and --target are domain folders")
    out.print(
        "[bold]lists[/]   any list files of `path label` lines, relative to --root; --source a.txt --target b.txt"
    )
    out.print("[bold]features[/]  what `fastget features` made of any of these; --root is the folder that it wrote")
    return 0


def _show(args: argparse.Namespace) -> int:
    lists = _lists(args)
    notes = [*count_notes(args.name, lists), *_unused(lists)]
    sheet, shown = contact_sheet(lists, args.out or f"{args.name}-contact-sheet.png")
    if args.json:
        domains = {images.name: _counts(images) for images in lists}
        tree = {"name": args.name, "domains": domains, "notes": notes, "contact_sheet": str(sheet)}
        print_json({**tree, "contact_sheet_shows": shown})
        return 0
    out = _out()
    table = Table("class", *(_plain(images.name) for images in lists), title=_plain(args.name))
    counts = [images.counts() for images in lists]
    for label in range(max(map(len, counts))):
        cells = [f"{count[label]:,}" if label < len(count) else "" for count in counts]
        table.add_row(_plain(_class_name(lists, label)), *cells)
    table.add_section()
    table.add_row("images", *(f"{len(images):,}" for images in lists))
    out.print(table)
    for note in notes:
        say(note, NOTE, out=True)
    say(f"contact sheet: {sheet}, {shown}", out=True)
    return 0


def _class_name(lists: Sequence[ImageList], label: int) -> str:
    """The class of this number; where lists of their own classes differ, each one's name for it."""
    return " / ".join(dict.fromkeys(images.classes[label] for images in lists if label < len(images.classes)))


def _check(args: argparse.Namespace) -> int:
    lists = _lists(args)
    kept = "while the files were checked: those that are done are remembered, and the same command goes on"
    with stopping(kept), progress_bar("checking", sum(map(len, lists))) as advance:
        report = check_lists(
            lists, full=not args.quick, workers=args.workers, max_pixels=args.max_pixels, again=args.again,
            advance=advance,
        )  # fmt: skip
    closed = [one for images in lists for one in unreadable(images.unused)]
    notes = [*report.notes, *count_notes(args.name, lists), *_unused(lists)]
    if args.json:
        print_json(_report_dict(args.name, lists, report, notes))
        return 1 if report.bad or closed else 0
    for problem in report.problems:
        _say_problem(problem)
    for note in notes:
        say(note, NOTE, out=True)
    known = f" ({report.remembered:,} unchanged since an earlier check)" if report.remembered else ""
    counts = ", ".join(f"{images.name} {len(images):,}" for images in lists)
    found = f"{len(report.bad):,} bad, {len(report.warnings):,} misnamed"
    say(f"{report.checked:,} files checked{known}: {counts}; {found}", out=True)
    return 1 if report.bad or closed else 0


def _pack(args: argparse.Namespace) -> int:
    lists = _lists(args)
    images = merged(lists)
    resize, interpolation = _resizing(args)
    encoding = Encoding(args.format, resize, args.quality, interpolation)
    folder = cache_folder(images.root, args.cache, encoding)
    if args.verify:
        return _verify(folder, args.json)
    with progress_bar("checking", len(images)) as advance:
        report = check_lists([images], full=False, workers=args.workers, max_pixels=args.max_pixels, advance=advance)
    if report.bad and args.bad_images == "error":
        for problem in report.bad:
            _say_problem(problem, out=False)
        say(f"{len(report.bad):,} bad files: nothing was packed. Leave them out with --bad-images skip")
        return 1
    for note in (*report.notes, *_unused(lists)):
        say(note, NOTE)
    say(f"{folder}: {report.checked:,} images, about {estimate(report.checked, encoding) / 1e9:.2f} GB")
    with progress_bar("packing", report.checked) as advance:
        made = pack(images, folder, encoding, workers=args.workers, max_pixels=args.max_pixels, advance=advance)
    if args.json:
        print_json({**dataclasses.asdict(made), "folder": str(made.folder)})
    else:
        _print_packing(made)
    return 1 if made.bad and args.bad_images == "error" else 0


def _resizing(args: argparse.Namespace) -> tuple[int, Interpolation]:
    """To how many pixels, and how, `fastget train` resizes the images of a data set for the backbone."""
    settings = {"data.name": args.name} | ({"network.name": args.network} if args.network else {})
    made = filled(make_config(settings)).data.preprocessing
    return args.resize or made.resize, args.interpolation or made.interpolation


def _print_packing(made: Packing) -> None:
    for problem in made.bad:
        _say_problem(problem, "left out: ")
    kept = f", {made.kept:,} of them were there already" if made.kept else ""
    again = "in shards whose checksum was wrong and which were written again"
    repaired = f", {made.repaired:,} {again}" if made.repaired else ""
    packed = f"{made.images - len(made.bad):,} images packed{kept}{repaired}"
    say(f"{packed}: {made.bytes / 1e9:.2f} GB in {made.folder}", out=True)


def _verify(folder: Path, as_json: bool) -> int:
    cache = Cache.open(folder)
    if cache is None:
        raise ValueError(f"there is no complete cache in {folder}: make it with `fastget data pack` without --verify")
    with progress_bar("verifying", len(cache.records)) as advance:
        wrong = verify(cache, advance)
    if as_json:
        print_json({"folder": str(folder), "shards": len(cache.shards), "damaged": wrong})
    else:
        for name in wrong:
            say(f"{folder / name}: a checksum is wrong", out=True)
        say(f"{len(cache.shards):,} shards, {len(wrong):,} damaged", out=True)
    return 1 if wrong else 0


def _lists(args: argparse.Namespace) -> list[ImageList]:
    """Of the domains asked for, or of all there are."""
    if args.name == "features":
        raise ValueError("features hold no images: `fastget features show FOLDER` tells of them")
    asked = dict.fromkeys(domain for domain in (args.source, args.target) if domain is not None)
    return read_domains(args.name, args.root, list(asked))


# --- output --------------------------------------------------------------------------------------


def _out() -> Console:
    return Console(file=sys.stdout, soft_wrap=True)


def _plain(text: str) -> str:
    """A cell of a table, whatever is in a name: no markup, no escape sequences."""
    return escape(escaped(text))


def _say_problem(problem: Problem, before: str = "", *, out: bool = True) -> None:
    say(f"{before}{problem.path}: {problem.reason}", out=out)


def _unused(lists: Sequence[ImageList]) -> list[str]:
    """What lies in the domains' folders and is not among the images, a line a reason."""
    return [note for images in lists for note in unused_notes(images.name, images.unused)]


def _counts(images: ImageList) -> dict[str, object]:
    counts = dict(zip(images.classes, images.counts().tolist(), strict=True))
    return {"images": len(images), "root": str(images.root), "classes": counts}


def _report_dict(name: str, lists: list[ImageList], report: CheckReport, notes: list[str]) -> dict[str, object]:
    return {
        "name": name,
        "domains": {images.name: len(images) for images in lists},
        "checked": report.checked,
        "remembered": report.remembered,
        "bad": [dataclasses.asdict(problem) for problem in report.bad],
        "warnings": [dataclasses.asdict(problem) for problem in report.warnings],
        "unused": [dataclasses.asdict(one) for images in lists for one in images.unused],
        "notes": notes,
    }
