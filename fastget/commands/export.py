"""`fastget export`: a trained network as a file for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fastget.commands.eval import data_config, find_domain, loader_of
from fastget.commands.options import add_checkpoint
from fastget.commands.output import say
from fastget.commands.predict import open_predictor
from fastget.serving import BATCH

if TYPE_CHECKING:
    from fastget.evaluation.infer import ClassMeans
    from fastget.serving.predictor import Predictor

HELP = "write a trained network as a torch.export program, as ONNX or as safetensors"
USAGE = """\
The exported network takes float32 RGB images of shape (N, 3, crop, crop), any N, with values between 0 and 1: resized
to data.resize by data.interpolation, cropped at the centre to data.crop, and NOT normalised, which it does itself. It
returns logits (N, classes); softmax turns them into probabilities. Class names and preprocessing are in the file, as
JSON:

  extra = {"fastget.json": ""}
  program = torch.export.load("model.pt2", extra_files=extra)
  classes = json.loads(extra["fastget.json"])["classes"]
  logits = program.module()(images)

and in ONNX files under the metadata key `fastget` (input `images`, output `logits`). The file is loaded back and
compared with the checkpoint on random images before it gets its name; exit code 1 if they differ.

FILE.safetensors holds the tensors: the network's, and the mean feature of each class of the source, for which its
images are read once. `fastget predict --checkpoint FILE.safetensors` and `fastget eval` take it as they take a run.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget export`."""
    parser.description = USAGE
    add_checkpoint(parser)
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="FILE.pt2, .onnx or .safetensors")
    parser.add_argument("--format", choices=["torch", "onnx", "safetensors"], help="default: by the name of FILE")
    parser.add_argument("--root", metavar="DIR", help="safetensors: where the source's images are now")
    parser.add_argument("--no-source-means", action="store_true", help="safetensors: without the source's class means")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 1 if the exported network is not the checkpoint's. ValueError is for wrong usage."""
    from fastget.serving.export import ExportFailed, choose_format, export

    format = choose_format(args.out, args.format)
    predictor = open_predictor(args.checkpoint, "cpu")
    source = None
    if format == "safetensors" and not args.no_source_means:
        source = _source_means(predictor, args.root)
    try:
        difference = export(predictor, args.out, format, source)
    except ExportFailed as error:
        say(str(error), "[bold red]fastget:[/] ")
        return 1
    side = predictor.preprocessing.crop
    shape = f"images (N, 3, {side}, {side}) in 0..1, logits within {difference:.1e}"
    if format == "safetensors":
        shape = f"{'without' if source is None else 'with'} the source's class means, the tensors"
    say(f"{args.out}: {len(predictor.classes)} classes, {shape} of {predictor.checkpoint}")
    return 0


def _source_means(predictor: Predictor, root: str | None) -> ClassMeans:
    """The mean feature of each class of the run's source."""
    from fastget.evaluation.infer import class_means

    try:
        data = data_config(predictor, {} if root is None else {"data.root": root})
        images, features = find_domain(data, "source", predictor)
    except ValueError as error:
        raise ValueError(
            f"the class means of the source need its images, and these are not found: {error}. Say where they are by "
            "--root, or leave the means out by --no-source-means"
        ) from error
    if images.classes != predictor.classes:
        raise ValueError(f"{images.name} has other classes than {predictor.checkpoint}: was the data changed?")
    loader = loader_of(predictor, images, data, BATCH, features)
    return class_means(predictor.network, loader, dtype=predictor.dtype)
