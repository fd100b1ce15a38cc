"""Small runs for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastget

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


def metrics(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the figures of time."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]
