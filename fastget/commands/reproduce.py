"""`fastget reproduce`: a table of the paper, run again, ours beside theirs."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastget.commands.compare import positive
from fastget.commands.options import add_set
from fastget.commands.train import SHORTHANDS
from fastget.common.text import counted
from fastget.config import parse_pairs, parse_settings
from fastget.studies.reproduce.recipe import read_table, table_names
from fastget.studies.reproduce.run import RECIPES, Reproduction, reproduce
from fastget.studies.slurm import parse_options
from fastget.studies.study import choose, choose_seeds, refuse_kept

HELP = "a table of the paper, run again: ours beside theirs"
EPILOG = """\
examples:
  fastget reproduce                                            # the tables
  fastget reproduce office-home-pda --plan                     # what it would run, and how long that would take
  fastget reproduce office-home-pda --root DATA --gpus 4
  fastget reproduce office-home-pda --root DATA --slurm partition=gpu minutes=600 cpus=8 --gpus 16
  fastget reproduce office-31-uda --root DATA --methods get --bases plain --tasks 'A->D,A->W' --seeds 0

It says first what it will run and how long that may take, by a short measured run.
--root is the data set's folder, or one that holds it under its name (DATA/office31, DATA/visda2017).

what it writes, in --out:
  table.md, table.csv, table.tex   the paper's rows and columns: theirs, ours (final models), the difference, the std;
                                   beside it other selections: the best iterate, an oracle, and label-free ones
  results/DATA/SETTING/METHOD.json the same as data, with commit, machine and a hash of the configuration
  results.csv                      a row a job, with status and reason
  DATA/SETTING/SOURCE-TARGET/METHOD/seed-N   each job's run, and seed-N.log beside it

The same command goes on where it was stopped or killed, runs no finished job again, tries failed ones again, and may
have more methods, tasks or seeds than before. Exit code 1: some job failed."""
SETTLED = {
    "data.name": "another TABLE",
    "data.source": "--tasks",
    "data.target": "--tasks",
    "data.root": "--root",
    "data.shots": "another TABLE",
    "method.recipe": "--recipe",
    "method.name": "--methods",
    "method.base": "--bases",
    "data.setting": "another TABLE",
    "data.imbalanced": "another TABLE",
    "data.pda_subset": "another TABLE",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget reproduce`."""
    parser.description = "Run a table of the paper: every task and method of it that is here, a process each."
    parser.epilog = EPILOG
    parser.add_argument("table", nargs="?", metavar="TABLE", help=f"one of {', '.join(table_names())}; none: list them")
    parser.add_argument("--root", type=Path, help="folder that the data set lies in, or of folders named as data sets")
    parser.add_argument("--methods", default="all", help="all of the table's (default), or some of them")
    parser.add_argument("--bases", default="all", help="base models: all of the table's (default), or some of them")
    parser.add_argument("--tasks", help="some of the table's tasks, as it names them: 'A->C,A->P'; default: all")
    parser.add_argument("--seeds", default="0,1,2", help="a run for each (0,1,2)")
    parser.add_argument(
        "--gpus", "--jobs", dest="jobs", type=positive, metavar="N",
        help="runs at a time; default: one a GPU, or without GPUs one a core, with one thread each",
    )  # fmt: skip
    parser.add_argument(
        "--slurm", nargs="*", metavar="KEY=VALUE",
        help="a SLURM job for each run, --gpus of them at a time (64): partition=, account=, qos=, constraint=, "
        "minutes=, cpus=, gigabytes=, gpus=; needs fastget[slurm]",
    )  # fmt: skip
    parser.add_argument(
        "--recipe", choices=RECIPES, default=RECIPES[0],
        help="default; paper: the values that the paper prints, for the methods that have such; paper-text: these, and "
        "for every method the learning rates of its text (bottleneck 0.001, classifier 0.01), which the code that it "
        "built on does not have",
    )  # fmt: skip
    field, text = SHORTHANDS["--bad-images"]
    parser.add_argument("--bad-images", dest=field, metavar="BAD_IMAGES", help=text)
    parser.add_argument("--out", type=Path, help="folder of the study; default: one under runs/ named after the table")
    parser.add_argument("--plan", action="store_true", help="say what would be run, and run nothing; needs no --root")
    add_set(parser, "any field, for every job")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0, or 1 if some job failed. ValueError is for wrong usage."""
    if args.table is None:
        return _list()
    table = read_table(args.table)
    given = {key: value for key, value in vars(args).items() if "." in key and value is not None}
    given |= parse_pairs(args.set)
    refuse_kept(given, SETTLED, "reproduce")
    parse_settings(given)
    what = Reproduction(
        table=table, methods=choose(args.methods, table.methods, "method"),
        bases=choose(args.bases, table.bases, "base"), tasks=choose(args.tasks or "all", table.tasks, "task"),
        seeds=choose_seeds(args.seeds), recipe=args.recipe, root=args.root, given=given,
    )  # fmt: skip
    if args.root is None and not args.plan:
        raise ValueError(f"--root is missing: the folder that {' and '.join(table.data)} lies in (or --plan)")
    stem = f"reproduce-{table.name}" + ("" if args.recipe == RECIPES[0] else f"-{args.recipe}")
    if not any(map(what.runs, table.rows)):
        raise ValueError(f"{table.name} has no row of {args.methods} on {args.bases}: choose others")
    slurm = None if args.slurm is None else parse_options(args.slurm)
    return reproduce(what, args.out or Path("runs") / stem, args.jobs, dry=args.plan, slurm=slurm)


def _list() -> int:
    width = max(map(len, table_names()))
    for name in table_names():
        table = read_table(name)
        rows = [row for row in table.rows if row.method is not None]
        jobs = len(rows) * sum(len(part.tasks) for part in table.parts)
        size = f"{counted(jobs, 'job')} a seed, {counted(table.numbers, 'number')} to compare"
        print(f"{name:<{width}}  {table.title}: {size}")
    return 0
