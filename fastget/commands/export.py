"""`fastget export`: a trained network as a file for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fastget.commands.predict import open_predictor

HELP = "write a trained network as a torch.export program or as ONNX"
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
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget export`."""
    parser.description = USAGE
    parser.add_argument(
        "--checkpoint", required=True, type=Path, metavar="RUN",
        help="a run's folder (its final checkpoint is used, else the newest intact one), or a checkpoint file",
    )  # fmt: skip
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="FILE.pt2 (torch) or FILE.onnx")
    parser.add_argument("--format", choices=["torch", "onnx"], help="torch or onnx (default: by the name of FILE)")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 1 if the exported network is not the checkpoint's. ValueError is for wrong usage."""
    from fastget.serving.export import ExportFailed, export

    predictor = open_predictor(args.checkpoint, "cpu")
    console = Console(stderr=True)
    try:
        difference = export(predictor, args.out, args.format)
    except ExportFailed as error:
        console.print(f"[bold red]fastget:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1
    side = predictor.preprocessing.crop
    text = (
        f"{args.out}: {len(predictor.classes)} classes, images (N, 3, {side}, {side}) in 0..1, "
        f"logits within {difference:.1e} of {predictor.checkpoint}"
    )
    console.print(escape(text), highlight=False, soft_wrap=True)
    return 0
