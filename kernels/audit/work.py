"""What the programs of a launch ask for, all together, found from the sizes alone.

    for launch in launches_of(256, 345, 2048, torch.bfloat16):
        work = work_of(launch)
        work.loads, work.stores, work.multiply_adds, work.special, work.trips

Bytes are those of lanes whose mask is true; products and exponentials are of whole tiles, as the card makes them. The
tests count the same in the interpreter. Three numbers depend on the data, and are the most that they can be: a class
without a sample is not written by the memory update, float32 class sums leave out blocks of rows without a member, and
(6') takes exponentials only where l is over 0, unless `narrow` says that it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from triton import cdiv

from fastget.kernels.launch import Launch
from fastget.kernels.statistics import KINDS
from fastget.kernels.tile import TILES

WIDE = 4  # bytes of a float32


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one launch asks of the card."""

    name: str
    programs: int
    loads: int  # bytes that all programs read
    stores: int  # bytes that all programs write
    once: int  # bytes of the tensors that it reads and writes, each once
    multiply_adds: int = 0  # of matrix products
    special: int = 0  # exponentials and logarithms
    trips: int = 1  # longest chain of loop trips, each waiting for memory
    waits: int = 0  # loads that the chain waits for beside its loop: what a step takes of pi
    stages: int = 1  # of a loop's trips, how many are under way at a time; 1: none waits in advance
    rows: int = 0  # of the least matrix product's tile
    kind: str = ""  # of its operands: "bf16", "tf32", "ieee"; "": no product
    warps: int = 4

    @property
    def asked(self) -> int:
        return self.loads + self.stores


class Arguments(dict[str, Any]):
    """A launch's arguments and constexprs by name."""

    def nbytes(self, *names: str) -> int:
        """Of tensors, absent ones left out."""
        given = (self[n] for n in names)
        return sum(t.numel() * t.element_size() for t in given if isinstance(t, Tensor))

    def blocks(self, axis: str, block: str = "BLOCK") -> int:
        """Of an axis "B", "C" or "D"."""
        return int(cdiv(self[axis], self[f"{block}_{axis}"]))


Counted = tuple[int, int, dict[str, Any]]  # loads, stores, and the rest of a Work


def work_of(launch: Launch, narrow: bool = True) -> Work:
    """The work of a launch of a step."""
    given = zip(launch.kernel.arg_names, launch.args, strict=False)
    loads, stores, others = COUNTS[launch.name](Arguments(given, **launch.constexprs, narrow=narrow))
    return Work(name=launch.name.removesuffix("_kernel"), programs=prod(launch.grid), loads=loads, stores=stores,
                once=launch.bytes, warps=launch.num_warps,
                stages=launch.num_stages if others.get("kind") else 1, **others)  # fmt: skip


def _logits(a: Arguments) -> Counted:
    tiles, blocks, trips = a["T"], a.blocks("B"), a.blocks("D")
    heads = sum(a[n] is not None for n in ("mu", "mu_g", "mu_f"))
    softmaxes = sum(a[n] is not None for n in ("mu_g", "mu_f")) + (a["ESTIMATE"] == "likelihood")
    parts = softmaxes + (a["mu"] is not None) + (a["ESTIMATE"] == "nearest")
    loads = tiles * a.nbytes("features") + blocks * a.nbytes("mu", "mu_g", "mu_f", "log_prior")
    stores = a.nbytes("S_g", "S_f", "norm", "norm_g", "norm_f") + parts * 2 * tiles * a["B"] * WIDE
    cells = tiles * blocks * a["BLOCK_B"] * a["BLOCK_C"]
    return loads, stores, {
        "multiply_adds": cells * trips * a["BLOCK_D"] * heads, "special": cells * softmaxes,
        "trips": trips, "waits": int(a["log_prior"] is not None), "rows": a["BLOCK_B"], "kind": a["PRECISION"],
    }  # fmt: skip


def _statistics(a: Arguments) -> Counted:
    B, C, T = a["B"], a["C"], a["T"]
    pair, merges, blocks, tiles = 2 * T * B * WIDE, cdiv(T, TILES.value), a.blocks("B"), a.blocks("C")
    softmaxes = 2 + (a["ESTIMATE"] == "likelihood")
    walks = softmaxes + (a["ESTIMATE"] == "nearest")
    across, deep, rows = a.blocks("C", "SUMS"), a.blocks("D", "SUMS"), a.blocks("B", "SUMS")
    labels = pair if a["labels"] is None else B * a["labels"].element_size()
    loads = pair + softmaxes * B * C * WIDE + walks * tiles * pair + a.nbytes("log_prior", "norm")
    loads += across * (deep * labels + a.nbytes("features"))
    stores = a.nbytes("y_M", "colsum_g", "colsum_f", "prior_sum", "row_count", "bad_rows", "sums", "counts")
    special = softmaxes * tiles * blocks * a["BLOCK_B"] * (a["BLOCK_C"] + merges * (1 + TILES.value))
    return loads, stores, {
        "multiply_adds": across * deep * rows * a["SUMS_B"] * a["SUMS_C"] * a["SUMS_D"], "special": special,
        "trips": max(blocks * merges, rows * (merges if a["labels"] is None else 1)),
        "rows": a["SUMS_C"], "kind": "ieee" if a["features"].dtype == torch.float32 else "bf16",
    }  # fmt: skip


def _objective(a: Arguments) -> Counted:
    blocks, trips, cells = a.blocks("B"), a.blocks("C"), a["BLOCK_B"] * a["BLOCK_C"]
    loads = 3 * a.nbytes("S_g", "S_f") + 2 * a.nbytes("y_M", "norm")
    loads += blocks * (3 * a.nbytes("colsum_g", "colsum_f") + 2 * a.nbytes("log_prior", "exponent", "power"))
    loads += blocks * a.nbytes("norm_g", "norm_f")
    names = ("slopes_g", "slopes_f", "cos_rows", "loss_parts", "kl_parts", "Q_parts", "cos_parts")
    special = trips * (4 * cells + a["BLOCK_B"]) + a["BLOCK_B"]
    if a["narrow"]:  # a power of P in each walk, beside the first's of its maximum; of the column sums in each
        special += trips * (3 * cells + a["BLOCK_B"] + 3 * 2 * a["BLOCK_C"])
    return loads, a.nbytes(*names), {"special": 2 * blocks * special, "trips": 3 * trips}


def _totals(a: Arguments) -> Counted:
    walks, tiles = cdiv(a["blocks"], a["BLOCK_B"]), a.blocks("C")
    made = a.nbytes("loss", "loss_g", "loss_f", "structure_g", "structure_f", "cos_columns")
    return a.nbytes("loss_parts", "kl_parts", "Q_parts", "cos_parts"), made, {
        "special": 2 * tiles * a["BLOCK_C"], "trips": max(2 * walks, (tiles + 1) * walks),
    }  # fmt: skip


def _backward(a: Arguments) -> Counted:
    B, C = a["B"], a["C"]
    deep, down, across = a.blocks("D"), a.blocks("B"), a.blocks("C")
    heads = [h for h in ("g", "f") if a[f"mu_{h}"] is not None]
    slope = B * C * max(a[f"slopes_{h}"].element_size() for h in heads)
    loads = multiply_adds = programs = 0
    cells = a["BLOCK_D"] * a["BLOCK_K"]
    if a["d_features"] is not None:
        programs += down * deep
        loads += len(heads) * deep * (slope + B * WIDE) + deep * B * WIDE + a.nbytes("features")
        loads += down * a.nbytes("mu_g", "mu_f")
        multiply_adds += down * deep * len(heads) * cdiv(C, a["BLOCK_K"]) * a["BLOCK_B"] * cells
    for h in heads:
        if a[f"d_mu_{h}"] is not None:
            programs += across * deep
            loads += deep * (slope + 2 * C * WIDE) + across * a.nbytes("features") + a.nbytes(f"mu_{h}")
            multiply_adds += across * deep * cdiv(B, a["BLOCK_K"]) * a["BLOCK_C"] * cells
    loads += programs * (2 * a.nbytes("grad_loss") + a.nbytes("grad_g", "grad_f"))
    return loads, a.nbytes("d_features", "d_mu_g", "d_mu_f"), {
        "multiply_adds": multiply_adds, "rows": min(a["BLOCK_B"], a["BLOCK_C"]), "kind": a["PRECISION"],
        "trips": max(len(heads) * cdiv(C, a["BLOCK_K"]) * (a["d_features"] is not None), cdiv(B, a["BLOCK_K"])),
    }  # fmt: skip


def _memory(a: Arguments) -> Counted:
    C, D = a["C"], a["D"]
    deep, rule = a.blocks("D"), a["log_pi"] is not None
    programs = a.blocks("C") * deep + 1
    loads = programs * a.nbytes("bad_rows", "prior_sum", "skip") + deep * C * WIDE + 2 * C * D * WIDE
    loads += a.nbytes("rows", "health", "pi", "trust")
    special = (4 * a["ALL_C"] + 2 if a["TRUSTED"] else a["ALL_C"]) if rule else 0
    return loads, a.nbytes("mu", "pi", "health", "log_pi", "exponent", "power"), {"special": special}


COUNTS: dict[str, Callable[[Arguments], Counted]] = {
    "logits_kernel": _logits,
    "statistics_kernel": _statistics,
    "objective_kernel": _objective,
    "totals_kernel": _totals,
    "backward_kernel": _backward,
    "memory_kernel": _memory,
}
assert KINDS.value == 3  # the programs of one block of classes, which _statistics() knows
