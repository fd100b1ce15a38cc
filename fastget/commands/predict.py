"""`fastget predict`: the classes of image files, folders and lists, as CSV."""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import io
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, get_args

from rich.console import Console

from fastget.commands.options import add_checkpoint
from fastget.commands.output import WARNING, say
from fastget.common.choices import Precision
from fastget.common.files import made_whole
from fastget.common.progress import progress_bar
from fastget.common.text import csv_cell
from fastget.data.folders import unused_notes, walk
from fastget.data.formats import IMAGE_SUFFIXES
from fastget.data.lists import read_list
from fastget.serving import BATCH

if TYPE_CHECKING:
    from fastget.serving.predictor import Prediction, Predictor

HELP = "classify images with a trained network: files, folders or lists, to CSV"
TOP_K = 3  # unless told, and unless there are fewer classes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget predict`."""
    parser.description = (
        "Classify images with a run's network. The CSV has a line an image: path, label, confidence, then the top k "
        "classes with their probabilities, and an error for a file that cannot be read. "
        "Exit code 1 if any image has an error, 2 for bad input."
    )
    add_checkpoint(parser)
    add_serving(parser)
    parser.add_argument(
        "images", nargs="+", metavar="IMAGES",
        help="image files, folders (searched through), or lists (.txt, lines of `path` or `path label`)",
    )  # fmt: skip
    parser.add_argument("--root", type=Path, help="folder that the paths in lists start from (default: the list's own)")
    parser.add_argument("--top-k", type=int, metavar="K", help=f"how many classes to name (default: {TOP_K})")
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="write the CSV here (default: standard output)")
    parser.add_argument("--workers", type=int, default=0, help="decoding threads; 0: one per core (default)")
    parser.add_argument(
        "--max-pixels", type=int, metavar="N", help="an image of more is not decoded; default: the run's"
    )


def add_serving(parser: argparse.ArgumentParser) -> None:
    """The arguments that `predict` and `eval` share."""
    parser.add_argument("--batch-size", type=int, default=BATCH, help=f"images at a time (default: {BATCH})")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 ..., or auto (default)")
    parser.add_argument(
        "--precision", choices=get_args(Precision),
        help="number type of the network; default: the run's, or float32 where the device has no other",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 1 if an image could not be classified. ValueError is for wrong usage."""
    for name in ("batch_size", "workers", "max_pixels"):
        least = 0 if name == "workers" else 1
        if (value := getattr(args, name)) is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    predictor = open_predictor(args.checkpoint, args.device, args.precision)
    top_k = min(TOP_K, len(predictor.classes)) if args.top_k is None else args.top_k
    unused: list[str] = []
    files = find_images(args.images, args.root, unused)
    console = Console(stderr=True)
    for note in unused:
        say(note)
    if args.max_pixels is not None:
        predictor = dataclasses.replace(predictor, max_pixels=args.max_pixels)
    rows = predictor.predict(files, args.batch_size, top_k=top_k, workers=args.workers)
    try:
        with _output(args.out) as stream:
            labels = _write(stream, _counted(rows, len(files), console, stream.isatty()), top_k)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    bad = len(files) - labels.total()
    _show(console, predictor, labels)
    where = f", written to {args.out}" if args.out else ""
    if bad:
        say(f"{bad:,} of {len(files):,} images could not be classified: see the error column{where}", WARNING)
    else:
        say(f"{len(files):,} images classified by {predictor.checkpoint}{where}")
    return 1 if bad else 0


def open_predictor(checkpoint: Path, device: str, precision: Precision | None = None) -> Predictor:
    """The predictor of --checkpoint on --device, in --precision if it is given; what is said of the checkpoint goes to
    standard error."""
    from fastget.common.device import choose_device
    from fastget.common.precision import choose_precision
    from fastget.serving.predictor import load_predictor

    found = load_predictor(checkpoint, choose_device(device), report=lambda text: say(text, WARNING))
    if precision is None:
        return found
    return dataclasses.replace(found, dtype=choose_precision(precision, found.device, force=True))


# --- which images --------------------------------------------------------------------------------


def find_images(places: Iterable[str], root: Path | None = None, unused: list[str] | None = None) -> list[str]:
    """The files that the command line names, in its order; a folder's are sorted. A missing file is kept as it is.

    `unused` gets a line for each reason why files of a folder are not among them."""
    files: list[str] = []
    notes = [] if unused is None else unused
    for place in places:
        path = Path(place)
        if path.is_dir():
            files += _in_folder(path, notes)
        elif path.suffix.lower() == ".txt":
            if not path.is_file():
                raise ValueError(f"no list file {path}: a name ending in .txt is a list with lines of `path [label]`")
            base = path.parent if root is None else root
            paths, _ = read_list(path, base, unlabelled=True)
            files += [os.path.join(base, file) for file in paths]
        else:
            files.append(place)
    return files


def _in_folder(folder: Path, unused: list[str]) -> list[str]:
    found = walk(folder, "")
    unused += unused_notes(str(folder), found.unused)
    if not found.images:
        raise ValueError(f"{folder} holds no image (looked for {', '.join(IMAGE_SUFFIXES)} in it and below)")
    return [os.path.join(folder, path) for path in found.images]


# --- the table -----------------------------------------------------------------------------------


def header(top_k: int) -> list[str]:
    """path, label, confidence, top1, top1_probability, ..., error."""
    tops = [name for k in range(1, top_k + 1) for name in (f"top{k}", f"top{k}_probability")]
    return ["path", "label", "confidence", *tops, "error"]


def _write(stream: TextIO, rows: Iterable[Prediction], top_k: int) -> Counter[str]:
    """How many images have each label: those with an error have none."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header(top_k))
    labels: Counter[str] = Counter()
    for row in rows:
        tops = [cell for name, share in row.top for cell in (name, f"{share:.6f}")] or [""] * (2 * top_k)
        sure = "" if row.confidence is None else f"{row.confidence:.6f}"
        writer.writerow(list(map(csv_cell, [row.path, row.label, sure, *tops, row.error])))
        labels.update([] if row.error else [row.label])
    return labels


@contextlib.contextmanager
def _output(out: Path | None) -> Iterator[TextIO]:
    """Standard output; or a file that has its name only once it is whole. Names that are not UTF-8 pass through."""
    if out is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        with (
            made_whole(out) as making,
            making.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
        ):
            yield file
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror or error}; choose another place by --out") from error


def _counted(rows: Iterator[Prediction], total: int, console: Console, shown: bool) -> Iterator[Prediction]:
    """The rows, counted on standard error, unless the rows themselves are shown there."""
    with progress_bar("predict", total, console, hidden=shown) as advance:
        for row in rows:
            yield row
            advance(1)


def _show(console: Console, predictor: Predictor, labels: Counter[str]) -> None:
    """What is in these images, in short."""
    import numpy as np

    from fastget.evaluation.classes import count
    from fastget.runs.sinks.classes import show_classes

    if labels.total() > 1:
        predicted = np.array([labels[name] for name in predictor.classes], dtype=np.int64)
        show_classes(console, count(predictor.classes, predicted), "what is in these images")
