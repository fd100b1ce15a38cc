"""What an exported safetensors file holds: the weights and all that is needed to use them, and no code to run.

Tensors: `network.*`, and where they are known `source_class_means` (C, D) and `source_class_counts` (C,): the mean
feature of each class of the source, with which others can adapt further without its images. The metadata's key
`fastget` is JSON: class names, preprocessing, and the sections of the configuration that say what the network is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fastget.evaluation.infer import ClassMeans
from fastget.runs.checkpoint import BadCheckpoint
from fastget.runs.upgrade import FORMAT

if TYPE_CHECKING:
    from fastget.serving.predictor import Predictor

SUFFIX, KEY = ".safetensors", "fastget"
OF_THE_TYPE = ("precision", "force_precision")  # fields of the train section that say what the network runs in
PLACES = ("root", "cache", "workers")  # fields of the data section that mean nothing on another machine


def write_weights(file: Path, predictor: Predictor, told: dict[str, Any], source: ClassMeans | None) -> None:
    """The file; `told` is what every exported file says of itself."""
    tensors = {f"network.{name}": value.contiguous() for name, value in predictor.network.state_dict().items()}
    if source is not None:
        tensors |= {"source_class_means": source.means.cpu(), "source_class_counts": source.counts.cpu()}
    config = {name: dict(predictor.config.get(name, {})) for name in ("data", "network", "method")}
    config["data"] = {name: value for name, value in config["data"].items() if name not in PLACES}
    config["train"] = {name: value for name, value in predictor.config.get("train", {}).items() if name in OF_THE_TYPE}
    content = {**told, "config": config, "fastget_format": FORMAT}
    file.write_bytes(save(tensors, metadata={"format": "pt", KEY: json.dumps(content)}))


def read_weights(file: Path) -> dict[str, Any]:
    """What a checkpoint of the same network would hold: config, classes, model, step. BadCheckpoint says what is
    wrong with the file."""
    try:
        with safe_open(file, framework="pt") as opened:
            told = json.loads((opened.metadata() or {}).get(KEY, "null"))
            model = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # it is no mapping
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise BadCheckpoint(f"{file} is damaged or no safetensors file: {error}") from error
    if not isinstance(told, dict):
        raise BadCheckpoint(
            f"{file} was not written by `fastget export`: its metadata has no {KEY!r}, which names the classes and "
            "the network"
        )
    if not isinstance(told.get("fastget_format"), int) or told["fastget_format"] > FORMAT:
        found = told.get("fastget_format")
        raise BadCheckpoint(f"{file} is of format {found}, and this version of fastget reads up to {FORMAT}")
    return {**told, "model": model}
