"""What `make bench` found: read from its files, in tables and plots, and against an older file by ratio.

    python -m benchmarks.report bench/*.json                                 # tables here
    python -m benchmarks.report bench/*.json --baseline benchmarks/baseline.json --out bench    # bench/bench.md, plots

A file is one of `benchmarks/`'s scripts (`--json`) or one of pytest-benchmark. A row is one way of doing one case's
work; the first row of a case is what the others of it are compared with. Times of two machines say nothing of each
other, so that what is compared with an older file are ratios within a case, of CPU time where it was measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastget.archive.plots import draw_bars
from fastget.archive.statistics import markdown
from fastget.common.files import write_atomically

FORMAT = "fastget-bench-1"
MOVED = 0.1  # a ratio that differs by more than this share from the older one is marked
SHAPES = ("eager", "compile", "triton")  # the rows of a kernel's benchmark


class Row(NamedTuple):
    """One way of doing one case's work. The first figure is a cost: the less the better."""

    bench: str
    case: str
    row: str
    figures: dict[str, float]

    @property
    def cost(self) -> float:
        return next(iter(self.figures.values()))


class Record(NamedTuple):
    """Files of one machine, read together."""

    machine: list[str]  # in words, of each file: device, versions, commit, load
    rows: list[Row]


def read_records(files: Sequence[Path]) -> Record:
    """ValueError names the file that is none."""
    machine: list[str] = []
    rows: list[Row] = []
    for file in files:
        words, found = _read(file)
        machine += [words] if words not in machine else []
        rows += found
    return Record(machine, rows)


def _read(file: Path) -> tuple[str, list[Row]]:
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        if held.get("format") == FORMAT:
            return _machine(held), [Row(**row) for row in held["rows"]]
        if "benchmarks" in held:
            return _pytest_machine(held), [_pytest_row(one) for one in held["benchmarks"]]
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is no JSON, which results of benchmarks are: make some by `make bench`") from error
    except (AttributeError, KeyError, TypeError, StopIteration) as error:
        raise ValueError(f"{file} is JSON, but no results of benchmarks: make some by `make bench`") from error
    raise ValueError(f"{file} holds no results of benchmarks: make some by `make bench`")


def _machine(held: dict[str, Any]) -> str:
    machine = held["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    load = "/".join(map(str, held["load"]))
    return f"{machine['device']}; {versions}; commit {machine['commit']}; load {load}; {held['made']}"


def _pytest_machine(held: dict[str, Any]) -> str:
    machine, commit = held["machine_info"], held.get("commit_info", {})
    versions = ", ".join(f"{name} {machine[name]}" for name in ("fastget", "torch", "triton") if name in machine)
    return f"{machine.get('device', machine.get('node'))}; {versions}; commit {commit.get('id')}; {held['datetime']}"


def _pytest_row(one: dict[str, Any]) -> Row:
    """A kernel's benchmark names its row last: step-36x65x256-eager."""
    inside = one["name"].partition("[")[2].removesuffix("]")
    case, _, row = inside.rpartition("-")
    stem = one["name"].partition("[")[0].removeprefix("test_")
    figures = {"ms, median": 1e3 * one["stats"]["median"], "ms, least": 1e3 * one["stats"]["min"]}
    extra = {key: value for key, value in one.get("extra_info", {}).items() if isinstance(value, (int, float))}
    found = (case, row) if row in SHAPES else (stem, inside or stem)
    return Row(stem, *found, {**figures, **extra})


# --- tables --------------------------------------------------------------------------------------


def by_case(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """(bench, case) -> its rows, the first one first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.bench, row.case), []).append(row)
    return found


def ratios(rows: Iterable[Row]) -> dict[tuple[str, str, str], float]:
    """How many times less each row costs than the first of its case."""
    return {
        (*key, row.row): group[0].cost / row.cost if row.cost else math.nan
        for key, group in by_case(rows).items()
        for row in group
    }


def tables(record: Record, baseline: Record | None = None) -> list[str]:
    """Markdown: a table of each benchmark, with ratios within a case, and to the older file's where there is one."""
    now, then = ratios(record.rows), {} if baseline is None else ratios(baseline.rows)
    lines = [f"- {words}" for words in record.machine]
    lines += [f"- compared with: {words}" for words in (baseline.machine if baseline else ())]
    by_bench = itertools.groupby(sorted(record.rows, key=lambda row: row.bench), key=lambda row: row.bench)
    for bench, group in by_bench:
        rows = list(group)
        names = list(dict.fromkeys(name for row in rows for name in row.figures))
        head = ["case", "row", *names, "against the first", *(["before", "now / before"] if baseline else [])]
        lines += ["", f"## {bench}", "", *markdown(head, [_cells(row, names, now, then, baseline) for row in rows])]
    return lines


def _cells(
    row: Row,
    names: Sequence[str],
    now: dict[tuple[str, str, str], float],
    then: dict[tuple[str, str, str], float],
    baseline: Record | None,
) -> list[str]:
    key = (row.bench, row.case, row.row)
    figures = [f"{row.figures[name]:,.4g}" if name in row.figures else "" for name in names]
    cells = [row.case, row.row, *figures, f"{now[key]:.2f}x"]
    if baseline is None:
        return cells
    before = then.get(key)
    if before is None or not math.isfinite(before) or not before:
        return [*cells, "", ""]
    change = now[key] / before
    return [*cells, f"{before:.2f}x", f"{change:.2f}{' (moved)' if abs(change - 1) > MOVED else ''}"]


def moved(record: Record, baseline: Record) -> list[str]:
    """In words, the ratios that fell by more than MOVED since the older file."""
    now, then = ratios(record.rows), ratios(baseline.rows)
    return [
        f"{bench}, {case}, {row}: {now[key]:.2f}x, was {then[key]:.2f}x"
        for key in now
        if key in then and now[key] < (1 - MOVED) * then[key]
        for bench, case, row in (key,)
    ]


def write_report(record: Record, baseline: Record | None, folder: Path) -> Path:
    """bench.md in the folder, and a plot of each benchmark beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Benchmarks", "", *tables(record, baseline), ""]
    for bench in dict.fromkeys(row.bench for row in record.rows):
        cases = {case: group for (of, case), group in by_case(record.rows).items() if of == bench}
        bars = {case: {row.row: row.cost for row in group} for case, group in cases.items()}
        name = next(iter(next(iter(cases.values()))[0].figures))
        draw_bars(bars, name, folder / f"{bench}.png")
        lines += [f"![{bench}: {name}]({bench}.png)", ""]
    write_atomically(folder / "bench.md", "\n".join(lines).encode())
    return folder / "bench.md"


# --- the program ---------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 1 if asked to fail by what fell. ValueError is for files that hold no results."""
    if args.fail and args.baseline is None:
        raise ValueError("--fail compares with older results: give --baseline FILE")
    if args.out is not None and args.out.exists() and not args.out.is_dir():
        raise ValueError(f"--out {args.out} is a file: name a folder")
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


def main(argv: Sequence[str] | None = None) -> int:
    """Its exit code; 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results, as JSON")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="older results to compare with")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write bench.md and plots there; default: print tables")
    parser.add_argument("--fail", action="store_true", help="exit code 1 if a ratio fell by more than a tenth")
    try:
        return run(parser.parse_args(argv))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
