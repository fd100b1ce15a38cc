"""`fastget sweep`: a grid over any fields of the configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastget import methods
from fastget.commands.compare import add_shared
from fastget.config import make_config, parse_pairs, parse_settings
from fastget.studies.study import choose_metric, choose_seeds, refuse_kept
from fastget.studies.sweep import Sweep, split_fields, sweep

HELP = "a grid over any fields, over seeds; a table and a plot"
EPILOG = """\
examples:
  fastget sweep --set get.tau=0.1,0.15,0.2 --seeds 0,1,2                       # a line: digits, minutes on a CPU
  fastget sweep --set get.tau=0.1,0.2 --set get.gamma_Q=0.2,0.5 --seeds 0,1    # a heat map
  fastget sweep --method mcc --data office-home --root DATA --set mcc.temperature=1,2.5 optim.lr=0.003,0.01

Values are separated by commas; a field with one value is the same for every job. The jobs are the grid of all values,
for each seed.

what it writes, in --out:
  results.csv   a row a job: the fields, the figures, the label-free criteria, status, reason
  table.md      a row a point of the grid, sorted by --metric, and what each label-free criterion would choose
  plot.png      one field: a line; two: a heat map; more: a line for each, over the values of the others
  FIELD=VALUE,.../seed-N   each job's run, as fastget train writes it, and seed-N.log beside it

To choose by the target's accuracy is an oracle: report it as one, or choose by what needs no labels.
The same command goes on where it was stopped or killed, and may have more values or seeds than before."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget sweep`."""
    parser.description = "Train with every combination of some fields' values, a process each, over seeds."
    options = ("--method", "--base", "--data", "--root", "--source", "--target", "--setting", "--bad-images")
    add_shared(parser, options, "0", EPILOG)


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 1 if some job failed. ValueError is for wrong usage."""
    pairs = parse_pairs(args.set)
    given = {key: value for key, value in vars(args).items() if "." in key and value is not None}
    refuse_kept({**given, **pairs}, {}, "sweep")
    if "method.module" in pairs:
        pairs["method.module"] = methods.import_module(pairs["method.module"])
    fields, fixed = split_fields(pairs)
    given |= fixed
    parse_settings(given)
    if both := [key for key in fields if key in given]:
        raise ValueError(f"{both[0]} is given by its option and by --set: leave one of them out")
    data = make_config({key: value for key, value in given.items() if key.startswith("data.")}, file=args.config).data
    seeds, metric = choose_seeds(args.seeds), choose_metric(args.metric, data.name)
    what = Sweep(fields=fields, seeds=seeds, given=given, file=args.config, metric=metric)
    return sweep(what, args.out or Path("runs") / f"sweep-{data.name}", args.jobs)
