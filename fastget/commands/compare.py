"""`fastget compare`: methods in settings on tasks over seeds, and one table of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from fastget import bases, methods
from fastget.archive.statistics import METRICS
from fastget.commands.options import add_config, add_fields, add_set
from fastget.commands.train import SHORTHANDS, settings_of
from fastget.config import DataConfig, make_config, parse_settings
from fastget.data.feature_store import Store
from fastget.studies.compare import KEPT, SETTINGS, Comparison, compare
from fastget.studies.study import choose, choose_metric, choose_seeds, refuse_kept
from fastget.studies.tasks import find_tasks

HELP = "methods against each other: settings, pairs of domains, seeds; a table and a plot"
EPILOG = """\
examples:
  fastget compare --methods source-only,get --settings uda,pda --seeds 0,1,2        # digits: minutes on a CPU
  fastget compare --data office-home --root DATA --methods all --settings uda,pda,pda-random --seeds 0,1,2 --tasks all
  fastget compare --data folder --root DATA --source photo --target sketch --methods get,mcc --bases plain,cdan

what it writes, in --out:
  results.csv   a row a job: method, base, recipe, setting, source, target, seed, figures, verdict, status, reason
  table.md      per setting: mean and std over seeds, per task and over tasks; the best and those within one std of it
  plot.png      the same at a glance
  results/DATA/SETTING/METHOD.json   the same as data: figures, seeds, commit, machine (python -m fastget.archive)
  SETTING/SOURCE-TARGET/BASE-METHOD/seed-N   each job's run, as fastget train writes it, and seed-N.log beside it

The same command goes on where it was stopped or killed, tries failed jobs again, and may have more methods, settings,
tasks or seeds than before. What does not go together is a row with the reason, and so is a job that fails.
pda-random draws the target's classes by seed, the same for every method (data.split_seed gives one draw for all).
`fastget train --help` lists the fields for --set; get.tau=0.2 goes to the jobs of get alone.
Exit code 1: some job failed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget compare`."""
    parser.description = "Every method in every setting on every task, a process each, over seeds."
    parser.add_argument("--methods", default="all", help=f"all (default), or some of {', '.join(methods.names())}")
    parser.add_argument(
        "--bases", default=bases.DEFAULT, help=f"base models: all, or some of {', '.join(bases.names())}"
    )
    parser.add_argument("--settings", default="uda", help=f"all, or some of {', '.join(SETTINGS)} (default: uda)")
    parser.add_argument(
        "--tasks", help="all ordered pairs of domains (of --source, or to --target, where given), or pairs like "
        "Art-Clipart,Art-Product; default: --source and --target, else the data set's first pair",
    )  # fmt: skip
    add_shared(parser, ("--data", "--root", "--source", "--target", "--bad-images"), "0,1,2", EPILOG)


def add_shared(parser: argparse.ArgumentParser, shorthands: Iterable[str], seeds: str, epilog: str) -> None:
    """What every study takes."""
    parser.epilog = epilog
    recipe = ("method.recipe", "the methods' values under a name (fastget train --help)")
    add_fields(parser, {**{option: SHORTHANDS[option] for option in shorthands}, "--recipe": recipe})
    parser.add_argument("--seeds", default=seeds, help=f"a run for each ({seeds})")
    add_config(parser)
    parser.add_argument("--out", type=Path, help="folder of the study; default: one under runs/ named after the data")
    parser.add_argument(
        "--jobs",
        type=positive,
        help="runs at a time; default: one a GPU, or without GPUs one a core, with one thread each",
    )
    parser.add_argument(
        "--metric", metavar="|".join(METRICS), help="what is marked, drawn and sorted by; default: the data set's own"
    )
    add_set(parser, "any field, for every job")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 1 if some job failed. ValueError is for wrong usage."""
    given = settings_of(args)
    refuse_kept(given, {**KEPT}, "compare")
    if "method.module" in given:
        given["method.module"] = methods.import_module(given["method.module"])
    parse_settings(given)
    data = make_config({key: value for key, value in given.items() if key.startswith("data.")}, file=args.config).data
    source, target = given.pop("data.source", None), given.pop("data.target", None)
    what = Comparison(
        methods=choose(args.methods, methods.names(), "method"),
        bases=choose(args.bases, bases.names(), "base"),
        settings=choose(args.settings, list(SETTINGS), "setting"),
        tasks=find_tasks(args.tasks, data, source, target),
        seeds=choose_seeds(args.seeds),
        given=given,
        file=args.config,
        metric=choose_metric(args.metric, _named(data)),
    )
    return compare(what, args.out or Path("runs") / f"compare-{data.name}", args.jobs)


def _named(data: DataConfig) -> str:
    """The data set; of features, that of the images that they are of."""
    return Store.open(Path(data.root)).origin.data if data.name == "features" and data.root else data.name


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, got {text!r}")
    return int(text)
