"""Run folders made by hand, with figures that one can work out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors.numpy import save_file

CLASSES = ("cat", "dog", "</script><b>cow")
ROWS = [  # label, prediction, confidence: 4 of 6 are right
    (0, 0, 0.97), (0, 0, 0.60), (0, 1, 0.90), (1, 1, 0.70), (1, 2, 0.40), (2, 2, 0.99),
]  # fmt: skip


def write_run(
    folder: Path,
    *,
    seed: int = 0,
    labelled: bool = True,
    finished: bool = True,
    accuracy: Sequence[float] = (0.5, 4 / 6),
    **settings: Any,  # section__field
) -> Path:
    """All that a run of two evaluations leaves, but for its checkpoints and its images."""
    folder.mkdir(parents=True)
    config: dict[str, dict[str, Any]] = {
        "data": {"name": "folder", "root": "gone", "source": "photo", "target": "sketch", "setting": "uda"},
        "network": {"name": "small", "weights": "none"},
        "method": {"name": "get", "base": "plain", "recipe": "default"},
        "optim": {"lr": 0.01},
        "train": {"seeds": [seed], "batch_size": 4},
    }
    for key, value in settings.items():
        section, _, name = key.partition("__")
        config.setdefault(section, {})[name] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    metrics: list[dict[str, Any]] = []
    for step, value in zip((10, 20), accuracy, strict=True):
        metrics.append({"step": step, "loss": 30 / step, "loss_source": 10 / step, "images_per_second": 100.0})
        known = {"accuracy": value, "mean_class_accuracy": value / 2} if labelled else {"accuracy": None}
        metrics.append({"step": step, **known, "entropy": 1.0 / step})
    _lines(folder / "metrics.jsonl", metrics)
    times = {"images_per_second": 100.0, "data_wait": 0.25, "method_ms": 100.0, "memory_mib": 5.0}
    _lines(
        folder / "timing.jsonl",
        [
            {"step": 10, "step_ms": 1000.0, "paused_s": 2.0, **times},
            {"step": 20, "step_ms": 3000.0, "paused_s": 1.0, **times},
        ],
    )
    if finished:
        _finish(folder, config, seed, labelled, accuracy[-1])
    return folder


def _finish(folder: Path, config: dict[str, dict[str, Any]], seed: int, labelled: bool, accuracy: float) -> None:
    per_class = dict(zip(CLASSES, (2 / 3, 1 / 2, 1.0), strict=True))
    summary = {
        "method": config["method"]["name"], "data": "folder", "setting": "uda", "source": "photo", "target": "sketch",
        "seed": seed, "steps": 20, "images": {"source": 9, "target": 6}, "settings": {"get.tau": 0.1},
        "accuracy": accuracy if labelled else None, "mean_class_accuracy": accuracy / 2 if labelled else None,
        "source_only": {"step": 5, "accuracy": 0.25, "mean_class_accuracy": 0.2} if labelled else None,
        "per_class_accuracy": per_class if labelled else dict.fromkeys(CLASSES),
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = ["path,label,prediction,confidence"]
    lines += [f"{i}.png,{CLASSES[y] if labelled else ''},{CLASSES[p]},{c}" for i, (y, p, c) in enumerate(ROWS)]
    (folder / "predictions.csv").write_text("\n".join(lines) + "\n")


def write_labels(folder: Path) -> None:
    """What GeT adds: its prior, and the worth of its labels."""
    quality = {"network": {"coverage": 0.5, "classes": 3, "accuracy": 0.5, "accuracy_sure": None}}
    quality["y_M"] = {"coverage": 0.25, "classes": 2, "accuracy": 0.75, "accuracy_sure": 1.0}
    first = {"step": 10, "quality": quality, "shares": {"prior": [1.0, 0.0, 0.0]}}
    _lines(folder / "labels.jsonl", [first, {**first, "step": 20, "shares": {"prior": [0.25, 0.5, 0.25]}}])


def write_features(folder: Path, *names: str) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    for name in names:
        tensors: dict[str, NDArray[Any]] = {"features": rng.normal(size=(60, 8)).astype(np.float16), "labels": labels}
        tensors |= {"place": np.arange(60), "predictions": np.where(labels == 1, 0, labels)}
        tensors["confidence"] = np.full(60, 0.5, dtype=np.float32)
        save_file(tensors, folder / f"features_{name}.safetensors")


def _lines(file: Path, lines: Sequence[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
