"""`fastget plan`: how fast a run would be, and what would bound it, on hardware that is not here."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from fastget.commands.options import add_config, add_fields, add_json, add_set
from fastget.commands.train import SHORTHANDS, settings_of
from fastget.config import make_config
from fastget.planning.cards import CARDS, CPU, PlanCard, card_of

if TYPE_CHECKING:
    from fastget.config import Config
    from fastget.planning.model import PlanMachine, Slower

HELP = "how fast a run would be on 1 to 256 GPUs, what bounds it, its memory and disk"
EPILOG = """\
examples:
  fastget plan --data visda2017 --card a100                       # the published data set, which need not be here
  fastget plan --data visda2017 --card h100 --cache raw           # with a packed cache (fastget data pack)
  fastget plan --data folder --images 1e8,1e7 --classes 1000 --card h200 --set network.name=vit_b_16
  fastget plan --measure                                          # this machine's CPU, after some seconds of measuring
  fastget plan --cards                                            # the cards that are known

It is a model, not a measurement: below the table it says what it assumes. docs/plan.md has the formulas, and how far
it is from measured and published speeds."""
MOST = 4096  # GPUs
OPTIONS = ("--data", "--source", "--target", "--setting", "--method", "--base")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget plan`."""
    parser.description = "Predict a run: images/s, hours, what bounds it, memory, disk. Nothing is trained."
    parser.epilog = EPILOG
    add_fields(parser, {option: SHORTHANDS[option] for option in OPTIONS})
    parser.add_argument("--images", type=counts, metavar="SOURCE,TARGET", help="images of the domains, e.g. 1e6,50000; "
                        "default: as published")  # fmt: skip
    parser.add_argument("--classes", type=whole, metavar="N", help="default: the data set's")
    parser.add_argument("--card", default="auto", help=f"one of {CPU}, {', '.join(CARDS)}; default: this machine's")
    parser.add_argument("--cards", action="store_true", help="list the cards and their figures")
    parser.add_argument("--gpus", type=numbers, default=[2**i for i in range(9)], metavar="N,N",
                        help="numbers of GPUs; default: 1,2,4 to 256")  # fmt: skip
    parser.add_argument("--fixed-batch", action="store_true", help="train.batch_size over all GPUs, not on each")
    parser.add_argument("--cache", choices=("off", "jpeg", "raw"), default="off", help="a packed cache; default: off")
    parser.add_argument("--files", choices=("jpeg", "png"), help="the images' files; default: as known, else jpeg")
    parser.add_argument("--pixels", type=whole, metavar="N", help="of an image file; default: as known, else 250,000")
    parser.add_argument("--cores", type=whole, default=8, metavar="N", help="CPU cores a GPU (8)")
    parser.add_argument("--wire", type=positive, metavar="GBIT", help="Gbit/s a GPU between nodes; default: the card's")
    parser.add_argument("--measure", action="store_true", help="on a CPU: time a few steps and images first, and keep "
                        "that for later plans")  # fmt: skip
    add_json(parser)
    add_config(parser)
    add_set(parser, "any field of `fastget train`")


def run(args: argparse.Namespace) -> int:
    """Exit code 0. ValueError is for wrong usage."""
    if args.cards:
        return _list()
    config = make_config(settings_of(args), file=args.config)  # mistakes are told before torch loads
    card = None if args.card in ("auto", CPU) else card_of(args.card)
    if args.measure and card is not None:
        raise ValueError(f"--measure times this machine's CPU, and the plan is for {card.title}: leave --card out")
    return _plan(args, config, card)


def _plan(args: argparse.Namespace, config: Config, card: PlanCard | None) -> int:
    from rich.console import Console

    from fastget.networks.preprocessing import filled
    from fastget.planning import show
    from fastget.planning.counts import sizes_of
    from fastget.planning.predict import Asked, as_json, predict
    from fastget.planning.reading import stored_as

    config = filled(config)
    sizes = sizes_of(config, args.images, args.classes)
    stored = stored_as(config, args.files, args.pixels)
    card = card or (_here() if args.card == "auto" else None)
    if card is None:
        from fastget.planning.measure import cpu_machine, measure, remembered

        kept = (measure(config, sizes.classes, stored), "") if args.measure else remembered(config)
        machine = cpu_machine(config, kept[0]) if kept else cpu_machine(config)
        how, gpus = _measured(kept), [1]
    else:
        machine, how, gpus = _gpu(args, config, card), "", args.gpus
    planned = predict(
        Asked(config=config, sizes=sizes, stored=stored, machine=machine, gpus=gpus, cache=args.cache,
              fixed=args.fixed_batch)
    )  # fmt: skip
    lines = show.assumptions(planned, how)
    if args.json:
        print(json.dumps(as_json(planned, lines), indent=1))
    else:
        show.show(planned, lines, Console())
    return 0


def _gpu(args: argparse.Namespace, config: Config, card: PlanCard) -> PlanMachine:
    from fastget.planning.model import PlanMachine

    if args.wire is not None:
        card = dataclasses.replace(card, wire=args.wire * 1e9 / 8)
    return PlanMachine(card, config.train.precision != "float32", args.cores)


def _here() -> PlanCard | None:
    """This machine's GPU, if it has one that is known."""
    import torch

    from fastget.planning.cards import found_by

    return found_by(torch.cuda.get_device_name()) if torch.cuda.is_available() else None


def _measured(kept: tuple[Slower, str] | None) -> str:
    """Where the CPU's speed is from, in words."""
    if kept is None:
        return "this CPU's speed is that of a usual server core: nothing was measured here (--measure does)"
    slower, name = kept
    of = f"on {name}" if name else "just now"
    return (f"this CPU was measured {of}: {slower.training:.2f} of the model's time for a step, "
            f"{slower.looking:.2f} for an evaluation, {slower.reading:.2f} for reading an image")  # fmt: skip


def _list() -> int:
    width = max(map(len, CARDS))
    for name, card in CARDS.items():
        print(f"{name:<{width}}  {card.title}: {card.half / 1e12:,.0f} TFLOPS, {card.bandwidth / 1e9:,.0f} GB/s, "
              f"{card.memory / 2**30:.0f} GiB")  # fmt: skip
    return 0


# --- numbers from the command line ---------------------------------------------------------------


def whole(text: str) -> int:
    """A whole number of at least 1: 250000, 1e8."""
    try:
        value: Any = float(text.replace("_", ""))
    except ValueError:
        value = 0.0
    if not 1 <= value <= 1e10 or value != int(value):
        raise argparse.ArgumentTypeError(f"a whole number from 1 to 1e10 is wanted, got {text!r}")
    return int(value)


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"a number above 0 is wanted, got {text!r}")
    return value


def counts(text: str) -> tuple[int, int]:
    """SOURCE,TARGET."""
    parts = text.split(",")
    if len(parts) != 2:
        raise argparse.ArgumentTypeError(f"two numbers are wanted, SOURCE,TARGET, got {text!r}")
    return whole(parts[0]), whole(parts[1])


def numbers(text: str) -> list[int]:
    """1,2,4: of GPUs, in order."""
    found = sorted({whole(part) for part in text.split(",")})
    if found[-1] > MOST:
        raise argparse.ArgumentTypeError(f"at most {MOST} GPUs are planned for, got {found[-1]:,}")
    return found
