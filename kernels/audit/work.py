"""What the programs of a launch ask for, all together, found from the sizes alone.

    for launch in launches_of(256, 345, 2048, torch.bfloat16):
        work = work_of(launch)
        work.loads, work.stores, work.multiply_adds, work.special, work.trips

Bytes are those of lanes whose mask is true; products and exponentials are of whole tiles, as the card makes them. The
tests count the same in the interpreter. Two numbers depend on the data, and are the most that they can be: a class
without a sample is not written by the memory update, and float32 class sums leave out blocks of rows without a member.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from fastget.kernels.copied import HEADS, PIECES
from torch import Tensor
from triton import cdiv

from fastget.kernels.audit.step import StepInputs, step
from fastget.kernels.backward import WHOLE
from fastget.kernels.launch import Launch, record
from fastget.kernels.statistics import KINDS
from fastget.kernels.tile import TILES

WIDE = 4  # bytes of a float32
LENGTHS = ("norm", "norm_mu", "norm_g", "norm_f")  # of features, mu, mu_g, mu_f


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
    stages: int = 1  # of a loop's trips, how many are under way at a time; 1: none waits in advance
    rows: int = 0  # of the least matrix product's tile
    kind: str = ""  # of its operands: "bf16", "tf32", "ieee"; "": no product
    warps: int = 4

    @property
    def asked(self) -> int:
        return self.loads + self.stores


def launches_of(B: int, C: int, D: int, dtype: torch.dtype) -> list[Launch]:
    """The launches of a step, not run: six, or seven where prototypes are copied."""
    from fastget import kernels

    def meta(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    with record(dry=True) as launches:
        step(kernels, StepInputs.make(meta, B, C, D, dtype))
    return launches


def work_of(launch: Launch) -> Work:
    """The work of a launch of a step."""
    given = dict(zip(launch.kernel.arg_names, launch.args, strict=False))
    loads, stores, others = COUNTS[launch.name](given, launch.constexprs)
    programs = 1
    for n in launch.grid:
        programs *= n
    return Work(name=launch.name.removesuffix("_kernel"), programs=programs, loads=loads, stores=stores,
                once=launch.bytes, warps=launch.num_warps,
                stages=launch.num_stages if others.get("kind") else 1, **others)  # fmt: skip


Counted = tuple[int, int, dict[str, Any]]


def _size(x: Tensor | None) -> int:
    return 0 if x is None else x.element_size()


def _nbytes(*tensors: Tensor | None) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def _logits(a: dict[str, Any], k: dict[str, Any]) -> Counted:
    B, D = a["B"], a["D"]
    tiles, blocks, trips = a["T"], cdiv(B, k["BLOCK_B"]), cdiv(D, k["BLOCK_D"])
    heads = [a[n] for n in ("mu", "mu_g", "mu_f") if a[n] is not None]
    softmaxes = sum(a[n] is not None for n in ("mu_g", "mu_f")) + (k["ESTIMATE"] == "likelihood")
    parts = softmaxes + (a["mu"] is not None) + (k["ESTIMATE"] == "nearest")
    loads = tiles * _nbytes(a["features"]) + blocks * _nbytes(*heads, a["prior"])
    stores = (
        _nbytes(*(a[n] for n in ("S_g", "S_f", "log_prior", "norm", "norm_g", "norm_f", "exponent")))
        + parts * 2 * tiles * B * WIDE
    )
    cells = k["BLOCK_B"] * k["BLOCK_C"]
    programs = tiles * blocks
    return loads, stores, {
        "multiply_adds": programs * trips * cells * k["BLOCK_D"] * len(heads),
        "special": programs * (softmaxes * cells + (a["prior"] is not None and not k["IS_LOG"]) * k["BLOCK_C"]),
        "trips": trips, "rows": k["BLOCK_B"], "kind": k["PRECISION"],
    }  # fmt: skip


def _copies(a: dict[str, Any], k: dict[str, Any]) -> Counted:
    loads = _nbytes(*(a[n] for n in ("features", "mu", "mu_g", "mu_f", "prior")))
    stores = _nbytes(*(a[n] for n in ("copies", *LENGTHS, "log_prior", "exponent")))
    special = cdiv(a["C"], k["PRIOR_C"]) * k["PRIOR_C"]
    return loads, stores, {"special": special, "trips": cdiv(a["D"], k["BLOCK_D"])}


def _copied_logits(a: dict[str, Any], k: dict[str, Any]) -> Counted:
    tiles, blocks, trips = a["T"], cdiv(a["B"], k["BLOCK_B"]), cdiv(a["D"], k["BLOCK_D"])
    softmaxes = 2 + (k["ESTIMATE"] == "likelihood")
    loads = tiles * _nbytes(a["features"], a["norm"])
    loads += blocks * (_nbytes(a["copies"], *(a[n] for n in LENGTHS[1:])) + HEADS.value * _nbytes(a["log_prior"]))
    parts = (softmaxes + 1 + (k["ESTIMATE"] == "nearest")) * 2 * tiles * a["B"] * WIDE
    cells = k["BLOCK_B"] * k["BLOCK_C"]
    return loads, _nbytes(a["S_g"], a["S_f"]) + parts, {
        "multiply_adds": tiles * blocks * trips * cells * k["BLOCK_D"] * HEADS.value,
        "special": tiles * blocks * softmaxes * (cells + PIECES.value * k["BLOCK_B"]),
        "trips": trips, "rows": k["BLOCK_B"], "kind": k["PRECISION"],
    }  # fmt: skip


def _statistics(a: dict[str, Any], k: dict[str, Any]) -> Counted:
    B, C, D, T = a["B"], a["C"], a["D"], a["T"]
    BLOCK_B, BLOCK_C = k["BLOCK_B"], k["BLOCK_C"]
    pair, merges, blocks, tiles = 2 * T * B * WIDE, cdiv(T, TILES.value), cdiv(B, BLOCK_B), cdiv(C, BLOCK_C)
    softmaxes = 2 + (k["ESTIMATE"] == "likelihood")
    walks = softmaxes + (k["ESTIMATE"] == "nearest")
    loads = pair + softmaxes * B * C * WIDE + walks * tiles * pair + _nbytes(a["log_prior"], a["norm"])
    stores = _nbytes(*(a[n] for n in ("y_M", "colsum_g", "colsum_f", "prior_sum", "row_count", "bad_rows")))
    special = softmaxes * tiles * blocks * (BLOCK_B * BLOCK_C + merges * BLOCK_B * (1 + TILES.value))
    trips, multiply_adds = blocks * merges, 0
    if a["sums"] is not None:
        across, deep, rows = cdiv(C, k["SUMS_C"]), cdiv(D, k["SUMS_D"]), cdiv(B, k["SUMS_B"])
        labels = pair if a["labels"] is None else _nbytes(a["labels"])
        loads += across * deep * labels + across * _nbytes(a["features"])
        stores += _nbytes(a["sums"], a["counts"])
        multiply_adds = across * deep * rows * k["SUMS_B"] * k["SUMS_C"] * k["SUMS_D"]
        trips = max(trips, rows * (merges if a["labels"] is None else 1))
    exact = a["features"] is not None and a["features"].dtype == torch.float32
    return loads, stores, {
        "multiply_adds": multiply_adds, "special": special, "trips": trips, "rows": k["SUMS_C"],
        "kind": "" if a["sums"] is None else "ieee" if exact else "bf16",
    }  # fmt: skip


def _objective(a: dict[str, Any], k: dict[str, Any]) -> Counted:
    B, C = a["B"], a["C"]
    blocks, trips, cells = cdiv(B, k["BLOCK_B"]), cdiv(C, k["BLOCK_C"]), k["BLOCK_B"] * k["BLOCK_C"]
    loads = 3 * _nbytes(a["S_g"], a["S_f"]) + 2 * _nbytes(a["y_M"], a["norm"])
    loads += blocks * (3 * _nbytes(a["colsum_g"], a["colsum_f"]) + 2 * _nbytes(a["log_prior"]))
    loads += blocks * (_nbytes(a["norm_g"], a["norm_f"]) + 2 * _nbytes(a["exponent"]))
    names = ("slopes_g", "slopes_f", "cos_rows", "loss_parts", "kl_parts", "Q_parts", "cos_parts")
    return loads, _nbytes(*(a[n] for n in names)), {
        "special": 2 * blocks * (trips * (4 * cells + k["BLOCK_B"]) + k["BLOCK_B"]), "trips": 3 * trips,
    }  # fmt: skip


def _totals(a: dict[str, Any], k: dict[str, Any]) -> Counted:
    walks, tiles = cdiv(a["blocks"], k["BLOCK_B"]), cdiv(a["C"], k["BLOCK_C"])
    names = ("loss", "loss_g", "loss_f", "structure_g", "structure_f", "cos_columns")
    parts = ("loss_parts", "kl_parts", "Q_parts", "cos_parts")
    return _nbytes(*(a[n] for n in parts)), _nbytes(*(a[n] for n in names)), {
        "special": 2 * tiles * k["BLOCK_C"], "trips": max(2 * walks, (tiles + 1) * walks),
    }  # fmt: skip


def _backward(a: dict[str, Any], k: dict[str, Any]) -> Counted:
    B, C, D = a["B"], a["C"], a["D"]
    deep, down, across = cdiv(D, k["BLOCK_D"]), cdiv(B, k["BLOCK_B"]), cdiv(C, k["BLOCK_C"])
    scalars = sum(_nbytes(a["grad_loss"], a[n]) for n in ("grad_g", "grad_f"))
    heads = [("mu_g", "slopes_g", "norm_g", "d_mu_g"), ("mu_f", "slopes_f", "norm_f", "d_mu_f")]
    used = [h for h in heads if a[h[0]] is not None]
    slope = B * C * max(_size(a[h[1]]) for h in used)
    loads = stores = multiply_adds = programs = 0
    cells = k["BLOCK_D"] * k["BLOCK_K"]
    rows, classes = (4 if k[n] * k["BLOCK_D"] > WHOLE.value else 1 for n in ("BLOCK_B", "BLOCK_C"))  # pieces stored
    if a["d_features"] is not None:
        programs += down * deep
        loads += len(used) * deep * (slope + B * WIDE) + rows * deep * B * WIDE + _nbytes(a["features"])
        copies = a["copies"]
        loads += down * (_nbytes(*(a[h[0]] for h in used)) if copies is None else len(used) * C * D * _size(copies))
        multiply_adds += down * deep * len(used) * cdiv(C, k["BLOCK_K"]) * k["BLOCK_B"] * cells
    for mu, _, _, d_mu in used:
        if a[d_mu] is not None:
            programs += across * deep
            loads += deep * (slope + (1 + classes) * C * WIDE) + across * _nbytes(a["features"]) + _nbytes(a[mu])
            multiply_adds += across * deep * cdiv(B, k["BLOCK_K"]) * k["BLOCK_C"] * cells
    stores = _nbytes(a["d_features"], a["d_mu_g"], a["d_mu_f"])
    return loads + programs * scalars, stores, {
        "multiply_adds": multiply_adds, "rows": min(k["BLOCK_B"], k["BLOCK_C"]), "kind": k["PRECISION"],
        "trips": max(len(used) * cdiv(C, k["BLOCK_K"]) * (a["d_features"] is not None), cdiv(B, k["BLOCK_K"])),
    }  # fmt: skip


def _memory(a: dict[str, Any], k: dict[str, Any]) -> Counted:
    C, D = a["C"], a["D"]
    deep = cdiv(D, k["BLOCK_D"])
    programs = cdiv(C, k["BLOCK_C"]) * deep + 1
    loads = programs * _nbytes(a["bad_rows"], a["prior_sum"], a["skip"]) + deep * C * WIDE + 2 * C * D * WIDE
    loads += _nbytes(a["rows"], a["health"]) + 4 * C * WIDE
    return loads, _nbytes(a["mu"], a["pi"], a["health"]), {"trips": 3 * cdiv(C, k["PRIOR_C"])}


COUNTS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Counted]] = {
    "logits_kernel": _logits,
    "copies_kernel": _copies,
    "copied_logits_kernel": _copied_logits,
    "statistics_kernel": _statistics,
    "objective_kernel": _objective,
    "totals_kernel": _totals,
    "backward_kernel": _backward,
    "memory_kernel": _memory,
}
assert KINDS.value == 3  # the programs of one block of classes, which _statistics() knows
