"""Small runs for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fastget
from fastget import bases, methods
from fastget.config.combinations import why_not
from fastget.data.domains import load_domains
from fastget.data.lists import UNLABELLED
from fastget.loading.stream import Batch
from fastget.runs.checkpoint import load_checkpoint
from fastget.training.engine import Engine

TIMES = ("images_per_second",)  # the only figure that two equal runs differ in
TINY = {
    "train.max_steps": 12,
    "train.warmup_steps": 4,
    "train.batch_size": 16,
    "optim.lr": 0.02,
    "train.log_every": 3,
    "train.eval_every": 6,
    "train.tensorboard": False,
}


def tiny(out: Path | str, **settings: Any) -> fastget.Config:
    """GeT on `digits` for a dozen steps. Fields are written with __ for the dot: get__tau=0.2."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return fastget.make_config({**TINY, "train.out": str(out), **given})


def reason_against(method: str, base: str, setting: str) -> str | None:
    """Why a method on a base model is refused in a setting; None if it is offered."""
    head = methods.settings_of(method).presets["default"].get("network.head", "linear")
    return why_not(method, base, setting, head)


def fitting(method: str, base: str = "plain") -> dict[str, Any]:
    """The settings of a combination that is offered, in the first setting in which it is."""
    settings = methods.settings_of(method).runs_in
    return {"method__name": method, "method__base": base, "data__setting": settings[0]}


PAIRS = [
    (method, base)
    for base in bases.names()
    for method in methods.names()
    if not all(reason_against(method, base, setting) for setting in ("uda", "pda", "ssda"))
]


def images(rows: int, seed: int) -> Tensor:
    """(rows, 3, 2, 2), float64."""
    return torch.randn(rows, 3, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch(images: Tensor, labels: Tensor | None = None, second: Tensor | None = None, first: int = 0) -> Batch:
    """Images as the loader gives them, the rows of their list from `first` on; without labels as the target's are."""
    place = torch.arange(len(images), device=images.device) + first
    labels = torch.full_like(place, UNLABELLED) if labels is None else labels
    return Batch(images, labels, np.arange(len(images)) + first, place, second)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the figures of time."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def checkpoint(folder: Path, name: str = "final") -> dict[str, Any]:
    return load_checkpoint(folder / "checkpoints" / f"{name}.pt")


def assert_same_end(one: Path, other: Path, *names: str) -> None:
    """Two runs logged the same; their final checkpoints, and others by name, hold the same model, to the bit."""
    assert metrics(one) == metrics(other)
    for name in ("final", *names):
        a, b = (checkpoint(folder, name) for folder in (one, other))
        assert [a.get(key) for key in ("step", "selected_by", "tallies")] == [
            b.get(key) for key in ("step", "selected_by", "tallies")
        ]
        assert a["model"].keys() == b["model"].keys()
        assert all(torch.equal(a["model"][key], b["model"][key]) for key in a["model"])


def cut_back(folder: Path, step: int) -> Path:
    """A finished run, as if it had been killed before the checkpoint after this step's."""
    for file in (*folder.glob("checkpoints/step_*.pt"), *folder.glob("checkpoints/final.pt"), folder / "summary.json"):
        if file.name.startswith("step_") and int(file.stem[5:]) <= step:
            continue
        file.unlink()
    return folder


def engine_of(**settings: Any) -> Engine:
    """The engine of such a run, on a few of the digits: a method's start looks at all of them."""
    config = tiny("run", **{"data__limit": 200, **settings})
    return Engine(config, 0, load_domains(config.data), torch.device("cpu"))
