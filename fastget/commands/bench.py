"""`fastget bench`: the results of benchmarks as tables and plots, and against older ones by ratio."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "tables and plots of what `make bench` found, compared with older results by ratio"
EPILOG = """\
examples:
  fastget bench report bench/*.json                                 # tables here
  fastget bench report bench/*.json --baseline benchmarks/baseline.json --out bench     # bench/bench.md, and plots

FILES are those of `make bench`: of the scripts in benchmarks/ (--json) or of pytest-benchmark. Each row is compared
with the first of its case, and these ratios with the older file's: times of two machines, or of two hours of a shared
one, are not comparable. Exit code 1 if --fail is given and a ratio fell by more than a tenth."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget bench`."""
    parser.description, parser.epilog = "Results of benchmarks, in tables and plots.", EPILOG
    parser.add_argument("action", choices=["report"], help="what to do: report")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results, as JSON")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="older results to compare with")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write bench.md and plots there; default: print tables")
    parser.add_argument("--fail", action="store_true", help="exit code 1 if a ratio fell by more than a tenth")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 1 if asked to fail by what fell. ValueError is for files that hold no results."""
    if args.fail and args.baseline is None:
        raise ValueError("--fail compares with older results: give --baseline FILE")
    if args.out is not None and args.out.exists() and not args.out.is_dir():
        raise ValueError(f"--out {args.out} is a file: name a folder")
    from fastget.studies.bench import moved, read_records, tables, write_report

    record = read_records(args.files)
    baseline = None if args.baseline is None else read_records([args.baseline])
    if args.out is None:
        print("\n".join(tables(record, baseline)))
    else:
        print(write_report(record, baseline, args.out))
    fell = [] if baseline is None else moved(record, baseline)
    for words in fell:
        print(f"fell: {words}")
    return 1 if fell and args.fail else 0
