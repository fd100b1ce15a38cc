"""Adapting on stored features: GeT, 1,000 steps of batch 36 from 2,817 to 498 features of width 2048, as Office-31's
amazon -> dslr, on one core. The figure to look at is `cpu_seconds` in `extra_info`: a whole run, with its checkpoints,
ten evaluations and TensorBoard events, without the imports.

FASTGET_FEATURES=FOLDER (that `fastget features` wrote of Office-31) takes the real ones in place of random ones.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import torch

import fastget
from fastget.features.imported import import_features

STEPS, BATCH = 1000, 36
ROWS, WIDTH, CLASSES = {"amazon": 2817, "dslr": 498}, 2048, 31


def features_folder(place: Path) -> Path:
    """The real ones, or random ones of the same shape that can be told apart."""
    if given := os.environ.get("FASTGET_FEATURES"):
        return Path(given)
    generator = torch.Generator().manual_seed(0)
    centres = torch.rand(CLASSES, WIDTH, generator=generator)
    labels = {domain: torch.arange(rows) % CLASSES for domain, rows in ROWS.items()}
    noise = {domain: torch.rand(rows, WIDTH, generator=generator) for domain, rows in ROWS.items()}
    feats = {domain: (centres[labels[domain]] + noise[domain]).half() for domain in ROWS}
    classes = [str(c) for c in range(CLASSES)]
    torch.save({"feats": feats, "labels": labels, "classes": classes}, place / "random.pt")
    return import_features(place / "random.pt", place / "features", name="random", backbone="none").folder


def adapt(root: Path, out: Path, steps: int = STEPS) -> float:
    """A whole run; the CPU seconds that the process spent on it."""
    settings = {
        "data.name": "features",
        "data.root": str(root),
        "data.source": "amazon",
        "data.target": "dslr",
        "train.batch_size": BATCH,
        "train.max_steps": steps,
        "train.out": str(out),
        "train.device": "cpu",
    }
    start = time.process_time()
    fastget.train(settings, quiet=True)
    return time.process_time() - start


def test_features(benchmark: Any, tmp_path: Path) -> None:
    """One run to warm up, three that are timed."""
    root = features_folder(tmp_path)
    adapt(root, tmp_path / "warm", steps=20)
    seconds: list[float] = []
    number = itertools.count()
    benchmark.group = f"features {ROWS['amazon']} -> {ROWS['dslr']}, {STEPS} steps of {BATCH}"
    benchmark.pedantic(lambda: seconds.append(adapt(root, tmp_path / f"run-{next(number)}")), rounds=3)
    benchmark.extra_info.update(cpu_seconds=sorted(round(value, 2) for value in seconds), threads=1, width=WIDTH)
