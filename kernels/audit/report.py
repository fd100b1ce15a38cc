"""What the kernels cost, without a GPU: `python -m fastget.kernels.audit.report`.

First every kernel in every configuration, compiled for every architecture: registers, spills, shared memory against
the limit, occupancy by formula, matrix instructions, atomics, sums that a product is fused into. Then one GeT step per
problem size: launches and bytes against eager PyTorch and against the minimum. Last, per launch, what all its programs
ask for (loads, stores, products, exponentials, the longest chain of loop trips) and the largest of what HBM, L2, matrix
cores, special functions and latency need for it, by a model.

Exit code 1 if a claim is broken: a spill on sm_80, sm_90 or sm_100, shared memory over the limit, an atomic, a product
fused into a sum over lanes, a matrix product without matrix instructions, or a kernel that does not compile.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fastget.kernels.audit import model, traffic
from fastget.kernels.audit.catalogue import variants
from fastget.kernels.audit.compile import ARCHITECTURES, Resources, inspect_all, pairs
from fastget.kernels.launch import interpreting
from fastget.methods.get.module import RECIPES

BOUNDS = ("hbm", "l2", "port", "matrix", "special", "latency")  # what a launch can be bound by, of model.Times
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def parse_size(text: str) -> tuple[int, int, int]:
    """ "256,345,2048" -> (B, C, D)"""
    try:
        B, C, D = (int(part) for part in text.replace("x", ",").split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected batch,classes,width such as 256,345,2048, got {text!r}") from error
    if min(B, D) < 1 or C < 2:
        raise argparse.ArgumentTypeError(f"expected a batch and a width of at least 1 and 2 classes, got {text!r}")
    return B, C, D


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the report."""
    add = parser.add_argument
    add("--arch", nargs="+", choices=list(ARCHITECTURES), default=list(ARCHITECTURES), metavar="ARCH",
        help=f"compile for these only; any of {', '.join(ARCHITECTURES)}")  # fmt: skip
    add("--no-compile", action="store_true", help="only the last tables, the model's: seconds")
    add("--fast", action="store_true", help="every kernel, but not every configuration")
    add("--full", action="store_true", help="a row per configuration; without it the worst per kernel")
    add("--csv", type=Path, metavar="FILE", help="write a row per configuration to FILE, and one per problem size to "
        "FILE's name with _traffic before its suffix")  # fmt: skip
    add("--recipe", choices=list(RECIPES), default="default", help="of the steps in all but the first table")
    add("--sizes", nargs="*", type=parse_size, default=list(traffic.SIZES), metavar="B,C,D",
        help="of those steps: batch,classes,width; none leaves the tables out")  # fmt: skip
    add("--dtype", choices=list(DTYPES), default="float32", help="of their features")
    add("--jobs", type=int, metavar="N", help="processes that compile; at most, and by default, one per core")


# --- the first table: resources -----------------------------------------------------------------


def collect(archs: Sequence[str], fast: bool, jobs: int | None, console: Console) -> list[Resources]:
    """Compile the catalogue, in its order, with a line for every tenth: minutes pass."""
    chosen = [v for v in variants() if v.fast or not fast]
    order = {(v.name, arch): i for i, (v, arch) in enumerate(pairs(chosen, archs))}
    total, rows = len(pairs(chosen, archs)), []
    console.print(f"compiling {total} kernels and architectures")
    for row in inspect_all(chosen, archs, jobs):
        rows.append(row)
        if 10 * len(rows) // total > 10 * (len(rows) - 1) // total:
            console.print(f"  {len(rows)} of {total}")
    return sorted(rows, key=lambda r: order[r.variant, r.arch])


def resource_table(rows: Iterable[Resources], full: bool) -> Table:
    """One row per configuration and architecture, or the worst of each kernel, type and architecture."""
    table = Table(title="What the compiler made of the kernels", caption=None if full else "the worst of each group")
    for name in ("kernel", "type", "arch"):
        table.add_column(name, no_wrap=True)
    table.add_column("configuration" if full else "configs", overflow="fold")
    for name in ("registers", "spills", "shared / limit", "occupancy"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("matrix", "atomics", "claims"):
        table.add_column(name, no_wrap=True)
    groups: dict[tuple[str, ...], list[Resources]] = {}
    for row in rows:
        key = (row.name, row.dtype, row.arch, row.config if full else "")
        groups.setdefault(key, []).append(row)
    for (name, dtype, arch, config), group in groups.items():
        table.add_row(name.removesuffix("_kernel"), dtype, arch, escape(config) or str(len(group)), *_cells(group))
    return table


def _cells(group: list[Resources]) -> list[str]:
    most = max(group, key=lambda r: r.shared)
    matrix = {op.split(".")[0] if op[0].isupper() else "mfma" for r in group for op in r.mma.split()}
    atomics = {op.split(".")[0] for r in group for op in r.atomics.split()}
    broken = sum(bool(r.broken_claims()) for r in group)
    stack, spills = max(r.stack for r in group), max(r.spills for r in group)
    return [
        str(max(r.registers for r in group)),
        f"[yellow]{stack} B, {spills} x[/]" if stack or spills else "0",
        f"{most.shared:,} / {most.shared_limit:,}",
        f"{min(r.occupancy for r in group):.0%}",
        " ".join(sorted(matrix)) or "-",
        " ".join(sorted(atomics)) or "none",
        f"[red]{broken} broken[/]" if broken else "[green]hold[/]",
    ]


# --- the second table: traffic ------------------------------------------------------------------


def traffic_rows(sizes: Sequence[tuple[int, int, int]], dtype: torch.dtype, recipe: str) -> list[dict[str, Any]]:
    """Launches and bytes of one step per problem size."""
    rows = []
    for B, C, D in sizes:
        eager, fused = (count(B, C, D, dtype, recipe) for count in (traffic.eager_step, traffic.fused_step))
        row: dict[str, Any] = {
            "B": B, "C": C, "D": D, "dtype": str(dtype).removeprefix("torch."), "recipe": recipe,
            "launches_eager": eager.launches, "launches_fused": fused.launches + len(fused.others),
            "bytes_eager": eager.bytes, "bytes_fused": fused.bytes,
            "bytes_minimum": traffic.minimum_bytes(B, C, D, dtype, recipe),
        }  # fmt: skip
        rows.append(row)
    return rows


def traffic_table(rows: list[dict[str, Any]]) -> Table:
    """Eager, fused and minimum side by side."""
    caption = "Bytes: each launch's tensors once; what other blocks read again is taken to be in the cache."
    table = Table(title="One GeT step: forward, backward, memory", caption=caption)
    _columns(table, "batch, classes, width", "launches", "bytes", "of the minimum")
    for r in rows:
        table.add_row(
            f"{r['B']}, {r['C']}, {r['D']} {r['dtype']}, {r['recipe']}",
            f"{r['launches_eager']} -> {r['launches_fused']}",
            f"{r['bytes_eager'] / 1e6:,.1f} -> {r['bytes_fused'] / 1e6:,.1f} MB",
            f"{r['bytes_eager'] / r['bytes_minimum']:.1f}x -> {r['bytes_fused'] / r['bytes_minimum']:.2f}x",
        )
    return table


def _columns(table: Table, first: str, *others: str) -> None:
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")


# --- the third table: the model -----------------------------------------------------------------


def model_table(size: tuple[int, int, int], dtype: torch.dtype, card: model.Card, recipe: str = "default") -> Table:
    """What all programs of each launch ask for, and what takes how long by the model."""
    found = model.step_times(*size, dtype, card, recipe)
    rate, least = card.rates["bf16"], traffic.products(*size)
    whole = model.total(found)
    caption = (
        f"A model, not a measurement: kernels/audit/model.py has its assumptions. In all {1e6 * whole:,.2f} us. "
        f"The eight matrix products are {1e6 * least / rate:,.1f} us at the bfloat16 rate of {rate / 1e12:,.0f} TFLOPS "
        f"({whole * rate / least:,.2f}x) and {1e6 * least / card.rates['tf32']:,.1f} us at TF32's "
        f"({whole * card.rates['tf32'] / least:,.2f}x)."
    )
    title = f"{card.name}, {', '.join(map(str, size))} {str(dtype).removeprefix('torch.')}, {recipe}"
    table = Table(title=title, caption=caption)
    _columns(table, "launch", "programs", "once, MB", "asked, MB", "multiply-adds", "exp, log", "trips", *BOUNDS, "us",
             "bound")  # fmt: skip
    for t in found:
        w = t.work
        table.add_row(
            w.name, f"{w.programs:,}", f"{w.once / 1e6:,.2f}", f"{w.asked / 1e6:,.2f}",
            f"{w.multiply_adds / 1e6:,.1f} M", f"{w.special / 1e6:,.2f} M", str(w.trips + w.waits),
            *(f"{1e6 * getattr(t, b):.2f}" for b in BOUNDS), f"{1e6 * t.seconds:.2f}", t.bound,
        )  # fmt: skip
    return table


# --- the program --------------------------------------------------------------------------------


def write_csv(path: Path, header: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """A CSV file with these columns; the directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header)
        writer.writeheader()
        writer.writerows(rows)


def run(args: argparse.Namespace, console: Console | None = None) -> int:
    """The report. Returns the exit code."""
    console = console or Console(width=None if sys.stdout.isatty() else 140)
    if interpreting():
        console.print(
            "[red]TRITON_INTERPRET is set: the kernels are the interpreter's and cannot be compiled. Unset it."
        )
        return 2
    rows, steps, dtype = [], [], DTYPES[args.dtype]
    if not args.no_compile:
        rows = collect(args.arch, args.fast, args.jobs, console)
        console.print(resource_table(rows, args.full))
        steps = traffic_rows(args.sizes, dtype, args.recipe)
    if steps:
        console.print(traffic_table(steps))
    for size in args.sizes:
        for card in model.CARDS.values():
            console.print(model_table(size, dtype, card, args.recipe))
    if args.no_compile:
        return 0
    if args.csv:
        header = [*(f.name for f in fields(Resources)), "broken_claims"]
        write_csv(args.csv, header, ({**asdict(r), "broken_claims": "; ".join(r.broken_claims())} for r in rows))
        if steps:
            write_csv(args.csv.with_stem(args.csv.stem + "_traffic"), list(steps[0]), steps)
    broken = [(r, claim) for r in rows for claim in r.broken_claims()]
    for r, claim in broken:
        console.print(f"[red]broken[/] {escape(r.variant)} on {r.arch}: {escape(claim)}", highlight=False)
    kernels = len({r.name for r in rows})
    console.print(f"{kernels} kernels, {len(rows)} compilations, {len(broken)} broken claims")
    return 1 if broken or not rows else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fastget.kernels.audit.report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
