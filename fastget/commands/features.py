"""`fastget features`: run a backbone once over every image, import features, show what a folder of them holds."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console

from fastget.commands.options import add_config, add_fields, add_json, add_set, given_fields
from fastget.commands.output import say
from fastget.common.progress import Advance, progress_bar
from fastget.common.signals import stopping
from fastget.config import make_config
from fastget.data.feature_store import Store

HELP = "features of every image, made once by a backbone, to adapt on in seconds; also: import, show"
OPTIONS = {  # as in `fastget train`: option -> (field, help)
    "--data": ("data.name", "data set: digits, office-home ... (`fastget data list`), folder or lists"),
    "--root": ("data.root", "folder that the images lie in"),
    "--bad-images": ("data.bad_images", "unreadable images: error (stop) or skip (leave them out, and note them)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget features`, and its subcommands."""
    parser.description = (
        "Run the backbone once over every image (resized, cropped at the centre) and store what it says of them, with "
        "labels, paths and class names. Then adapt bottleneck and classifier on them: "
        "`fastget train --data features --root OUT --source A --target B`. Killed at any moment, the same command goes "
        "on; under torchrun the ranks share the images."
    )
    parser.epilog = (
        "Example: fastget features --data office-home --root DATA --out FEATURES --set network.name=resnet50"
    )
    add_fields(parser, OPTIONS)
    parser.add_argument("--source", help="a domain, or a list file; its classes are those of all")
    parser.add_argument("--target", help="another one")
    parser.add_argument("--domains", metavar="all", help="all (default), or names separated by commas")
    add_config(parser)
    add_set(parser, "network.name, network.weights, data.resize, train.precision ... (`fastget train --help`)")
    parser.add_argument("--dtype", choices=["float16", "float32"], default="float16", help="as stored")
    parser.add_argument("--out", metavar="FOLDER", help="the folder to write, or to go on with")
    commands = parser.add_subparsers(dest="features_command", metavar="[import | show]")
    _add_import(commands.add_parser("import", help="features of another program, from a torch file"))
    show = commands.add_parser("show", help="what a folder of features holds, a line a domain")
    show.add_argument("folder", metavar="FOLDER", help="that `fastget features` wrote")
    add_json(show)


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Read a torch file {"feats": {domain: (n, D)}, "labels": {domain: (n,)}, "classes": [names]}, and "paths" of '
        "the same form if there are any, without running anything that it holds."
    )
    parser.add_argument("file", metavar="FILE.pt", help="the torch file")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="the folder to write")
    parser.add_argument("--name", required=True, help="the data set's name, for the record")
    parser.add_argument("--backbone", required=True, help="the backbone that made them, for the record: resnet50 ...")
    parser.add_argument("--dtype", choices=["float16", "float32"], default=None, help="default: as in the file")


def run(args: argparse.Namespace) -> int:
    """Exit code 0. ValueError is for wrong usage; RunFailed for images that turn out bad."""
    if args.features_command == "show":
        return _show(Store.open(Path(args.folder)), args.json)
    if args.features_command == "import":
        from fastget.features.imported import import_features

        return _show(import_features(args.file, args.out, name=args.name, backbone=args.backbone, dtype=args.dtype))
    return _make(args)


def _make(args: argparse.Namespace) -> int:
    if args.out is None:
        raise ValueError("say where the features go: --out FOLDER")
    domains, led = chosen(args)
    config = make_config(given_fields(args), file=args.config)  # a mistake is reported before torch loads
    from fastget.common.ranks import first_of_all
    from fastget.features.make import make_features

    console = Console(stderr=True)

    def bar(total: int) -> AbstractContextManager[Advance]:
        return progress_bar("features", total, console, hidden=not first_of_all())

    with stopping("in the making: the finished shards are kept, and the same command goes on"):
        made = make_features(config, args.out, domains, led=led, dtype=args.dtype, progress=bar)
    if not first_of_all():
        return 0
    left_out = [f"left out: {problem['path']} {problem['reason']}" for problem in made.left_out]
    for line in (*made.notes, *left_out):
        say(line)
    kept = f", {made.kept:,} of them were there already" if made.kept else ""
    say(f"{made.images - len(made.left_out):,} images{kept}", out=True)
    return _show(made.store)


def chosen(args: argparse.Namespace) -> tuple[list[str], bool]:
    """The domains asked for (none: all), and whether the first one tells the classes."""
    pair = list(dict.fromkeys(domain for domain in (args.source, args.target) if domain is not None))
    if args.domains is not None and pair:
        raise ValueError("--domains goes without --source and --target: give one or the other")
    if args.domains in (None, "all"):
        return pair, args.source is not None
    names = [name.strip() for name in args.domains.split(",") if name.strip()]
    if not names:
        raise ValueError("--domains takes all, or names separated by commas")
    return names, False


def _show(store: Store, as_json: bool = False) -> int:
    if as_json:
        print((store.folder / "index.json").read_text(encoding="utf-8"))
        return 0
    origin = store.origin
    size = f", resized to {origin.resize}, cropped to {origin.crop}" if origin.resize else ""
    say(f"{store.folder}: {origin.data} by {origin.tag}{size}", out=True)
    for domain, entries in store.domains.items():
        rows, stored = sum(entry.rows for entry in entries), sum(entry.bytes for entry in entries)
        bad = sum(len(entry.left_out) for entry in entries)
        left = f", {bad:,} images left out" if bad else ""
        say(
            f"{domain}: {rows:,} x {origin.dim} {origin.dtype}, {len(store.classes)} classes, "
            f"{len(entries):,} shard{'s' * (len(entries) > 1)}, {stored / 1e6:.1f} MB{left}",
            out=True,
        )
    return 0
