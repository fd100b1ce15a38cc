"""`fastget tune`: the fastest block sizes of the kernels on this card, for the shapes of a data set."""

from __future__ import annotations

import argparse

from fastget.commands.options import add_config, add_fields, add_set
from fastget.commands.train import SHORTHANDS, settings_of
from fastget.config import make_config

HELP = "find the kernels' fastest block sizes on this card, and use them from then on"
EPILOG = """\
examples:
  fastget tune --data visda2017                    # the shapes of a run on it
  fastget tune --shape 256,345,2048                # batch, classes, width

On a CPU nothing can be measured: the times are a model's, the table says so, and no GPU ever uses it. docs/tune.md."""


def shape(text: str) -> tuple[int, int, int]:
    """ "256,345,2048" -> (batch, classes, width)"""
    try:
        B, C, D = (int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected batch,classes,width such as 256,345,2048, got {text!r}") from error
    if min(B, D) < 1 or C < 2:
        raise argparse.ArgumentTypeError(f"expected a batch and a width of at least 1 and 2 classes, got {text!r}")
    return B, C, D


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget tune`."""
    parser.description = (
        "Time every candidate of the kernels' block sizes on this card (about two minutes), keep the best."
    )
    parser.epilog = EPILOG
    add_fields(parser, {option: SHORTHANDS[option] for option in ("--data", "--source", "--target")})
    parser.add_argument("--classes", type=int, metavar="N", help="default: the data set's")
    parser.add_argument("--shape", type=shape, action="append", default=[], metavar="B,C,D",
                        help="batch,classes,width instead of a data set's; may be said more than once")  # fmt: skip
    add_config(parser)
    add_set(parser, "any field of `fastget train`")


def run(args: argparse.Namespace) -> int:
    """Exit code 0. ValueError is for wrong usage."""
    config = make_config(settings_of(args), file=args.config)  # mistakes are told before torch loads
    import torch

    from fastget.common.device import choose_device
    from fastget.kernels.tuning.measure import CARD, tune
    from fastget.methods import tuned
    from fastget.planning.counts import sizes_of

    device = choose_device("auto")
    shapes = args.shape
    if not shapes:
        shapes = [
            (config.train.batch_size, sizes_of(config, None, args.classes).classes, config.network.bottleneck_dim)
        ]
    half = torch.float16 if device.type == "cuda" and not torch.cuda.is_bf16_supported() else torch.bfloat16
    kinds = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "auto": half}
    if device.type != "cuda":
        print(f"no GPU here: these are the times of a model of an {CARD}, not measured, and no GPU will use them")
    entries = tune(shapes, kinds[config.train.precision], device)
    tuned.write(device, entries)
    print(f"kept in {tuned.place()}" + ("; in use from now on" if device.type == "cuda" else ""))
    return 0
