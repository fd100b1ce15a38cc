"""What a trained network says of image files: rebuilt from a checkpoint alone, without data or ImageNet weights.

Shapes: N images in a batch, C classes, H = W = crop.
"""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastget.common.device import laid_out
from fastget.common.precision import autocast, of_a_run
from fastget.common.preprocessing import Preprocessing
from fastget.common.text import and_more
from fastget.config import make_config
from fastget.data.decode import MAX_PIXELS, BadImage, Problem
from fastget.data.lists import UNLABELLED, ImageList
from fastget.loading.loader import Loader
from fastget.loading.pixels import normalise
from fastget.loading.sampling import EvalSampler
from fastget.loading.stream import Stream
from fastget.networks.network import Network, build_network
from fastget.networks.weights import misfit
from fastget.runs.checkpoint import FINAL, BadCheckpoint, CheckpointFolder, load_checkpoint
from fastget.serving import BATCH
from fastget.serving.exported_weights import OF_THE_TYPE, SUFFIX, read_weights


@dataclass(frozen=True)
class Prediction:
    """What the network says of one file: the k most probable classes, best first, or why there are none."""

    path: str
    top: tuple[tuple[str, float], ...]  # (class name, probability)
    error: str = ""

    @property
    def label(self) -> str:
        return self.top[0][0] if self.top else ""

    @property
    def confidence(self) -> float | None:
        return self.top[0][1] if self.top else None


@dataclass(frozen=True)
class Predictor:
    """The network of a checkpoint, in evaluation mode, with its classes and its preprocessing. It runs in the number
    type of its run, where the device has instructions for that."""

    network: Network
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    device: torch.device
    checkpoint: Path  # the file it came from
    step: int
    config: dict[str, dict[str, Any]]  # the run's, as stored
    backbone: dict[str, str] = field(default_factory=dict)  # the record of what the run began with; empty in old ones
    max_pixels: int = MAX_PIXELS  # a file that tells of more is not decoded
    dtype: torch.dtype = torch.float32  # that the network runs in

    @property
    def features_of(self) -> str | None:
        """The backbone whose features the network is shown in place of images; None if it has one of its own."""
        return str(self.config["network"].get("name")) if self.config["data"].get("name") == "features" else None

    def need_images(self, what: str) -> None:
        """ValueError if the network cannot be shown images."""
        if self.features_of is not None:
            raise ValueError(
                f"{self.checkpoint} is of a run on features of {self.features_of}: its network has no backbone, and "
                f"cannot {what}. Train on the images themselves for that; `fastget eval` takes features"
            )

    def probabilities(self, levels: Tensor) -> Tensor:
        """(N, H, W, 3) uint8 -> (N, C)."""
        return self._softmax(normalise(levels.to(self.device), self.preprocessing))

    @torch.inference_mode()
    def _softmax(self, images: Tensor) -> Tensor:
        with autocast(self.device, self.dtype):
            _, logits = self.network(images)
        return torch.softmax(logits.float(), 1)

    def predict(
        self,
        files: Sequence[str | os.PathLike[str]],
        batch_size: int = BATCH,
        *,
        top_k: int = 1,
        workers: int = 0,  # decoding threads; 0: one per core
    ) -> Iterator[Prediction]:
        """A row a file, in their order, preprocessed as in evaluation. A file that cannot be read gets its error."""
        self.need_images("classify images")
        if not 1 <= top_k <= len(self.classes):
            raise ValueError(f"top-k must lie between 1 and the {len(self.classes)} classes, got {top_k}")
        if batch_size < 1:
            raise ValueError(f"the batch size must be at least 1, got {batch_size}")
        names = [os.fspath(file) for file in files]
        places = [os.path.abspath(name) for name in names]
        images = ImageList("the files", Path(os.sep), places, np.full(len(names), UNLABELLED), self.classes)
        wanted = self.preprocessing
        sampler = EvalSampler(len(images), batch_size, margin=wanted.margin)
        stream = Stream(images, sampler, wanted, bad_threshold=1, max_pixels=self.max_pixels)
        return self._rows(names, Loader(stream, self.device, "torchvision", workers), top_k)

    def _rows(self, files: list[str], loader: Loader, top_k: int) -> Iterator[Prediction]:
        at = 0
        for batch in loader.batches():
            # a stable sort: of equal classes the first comes first, as in evaluation
            values, order = self._softmax(batch.images).sort(dim=1, descending=True, stable=True)
            tops = zip(batch.index.tolist(), values[:, :top_k].tolist(), order[:, :top_k].tolist(), strict=True)
            for index, best, classes in tops:
                yield from self._unread(files[at:index], loader)
                at = index + 1
                if math.isnan(best[0]):
                    why = "the network's output is not a number: are the checkpoint's weights finite?"
                    yield Prediction(files[index], (), why)
                    continue
                top = tuple((self.classes[c], share) for c, share in zip(classes, best, strict=True))
                yield Prediction(files[index], top)
        yield from self._unread(files[at:], loader)

    def _unread(self, files: list[str], loader: Loader) -> Iterator[Prediction]:
        """Those of a batch that could not be read."""
        reasons = {bad.path: bad.reason for bad in loader.bad.files} if files else {}
        for file in files:
            error = str(BadImage(Problem(file, "", reasons[os.path.abspath(file)])))
            yield Prediction(file, (), error if os.path.exists(file) else "no such file")


# --- from a checkpoint ---------------------------------------------------------------------------


def load_predictor(
    checkpoint: str | Path,
    device: torch.device | str = "cpu",
    *,
    report: Callable[[str], None] | None = None,
) -> Predictor:
    """The predictor of a run's folder (its final checkpoint, else the newest intact one) or of a checkpoint file.

    Raises BadCheckpoint for anything else. `report` is told when it isn't the final one; None: a warning.
    """
    place = Path(checkpoint)
    if place.is_dir():
        return _from_folder(place, torch.device(device), report or (lambda text: warnings.warn(text, stacklevel=3)))
    if not place.exists():
        raise BadCheckpoint(f"no run or checkpoint {place}: give a run's folder, or a file of its checkpoints/")
    try:
        return _from_file(place, torch.device(device))
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{error}{_offer(place)}") from error


def _from_folder(run: Path, device: torch.device, report: Callable[[str], None]) -> Predictor:
    folder = run / "checkpoints" if (run / "checkpoints").is_dir() else run
    final = folder / FINAL
    files = ([final] if final.exists() else []) + CheckpointFolder(folder, keep=1).steps()
    if not files:
        seeds = sorted(place.name for place in run.glob("seed-*") if place.is_dir())
        if seeds:
            raise BadCheckpoint(f"{run} holds the runs of several seeds ({and_more(seeds)}): give {run / seeds[0]}")
        raise BadCheckpoint(f"{run} holds no checkpoint: expected {run / 'checkpoints' / FINAL}, as a run writes it")
    wrong: list[str] = []
    for file in files:
        try:
            found = _from_file(file, device)
        except BadCheckpoint as error:
            wrong.append(str(error))
            continue
        if file != final:
            why = "; ".join(wrong) or f"{run} has no {FINAL}: the run has not ended"
            report(f"{why}. Using {file.name}, of step {found.step}")
        return found
    raise BadCheckpoint(f"no checkpoint of {run} can be used: {'; '.join(wrong)}")


def _offer(file: Path) -> str:
    """Another checkpoint of the same folder that can be used, in words."""
    final = file.with_name(FINAL)
    for other in [final, *CheckpointFolder(file.parent, keep=1).steps()]:
        if other != file and other.exists():
            try:
                _from_file(other, torch.device("cpu"))
            except BadCheckpoint:
                continue
            return f". {other} is intact: give that one"
    return ""


def _from_file(file: Path, device: torch.device) -> Predictor:
    state = read_weights(file) if file.suffix == SUFFIX else load_checkpoint(file)
    config, classes, weights = (state.get(key) for key in ("config", "classes", "model"))
    if not (
        isinstance(config, dict)
        and all(isinstance(config.get(section), dict) for section in ("network", "data"))
        and isinstance(classes, list)
        and classes
        and all(isinstance(name, str) for name in classes)
        and isinstance(weights, dict)
    ):
        raise BadCheckpoint(
            f"{file} lacks a run's configuration, class names or weights: expected a file that fastget wrote"
        )
    settings = {f"network.{name}": value for name, value in config["network"].items()}
    # a run of an earlier version does not tell all of it, and had what was a constant then
    own = {info.name: config["data"].get(info.name) for info in dataclasses.fields(Preprocessing)}
    own = dataclasses.asdict(Preprocessing()) | {name: value for name, value in own.items() if value is not None}
    settings |= {"data.max_pixels": config["data"]["max_pixels"]} if "max_pixels" in config["data"] else {}
    trained = config.get("train")  # an exported file of an earlier version has none
    trained = trained if isinstance(trained, dict) else {}
    settings |= {f"train.{name}": trained[name] for name in OF_THE_TYPE if name in trained}
    try:
        read = make_config(
            settings | {f"data.{name}": value for name, value in own.items()} | {"network.weights": "none"}
        )
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
            network = build_network(read.network, len(classes), read.data.preprocessing.crop, _given(config, weights))
    except ValueError as error:
        raise BadCheckpoint(f"{file} holds a configuration that this version of fastget cannot use: {error}") from error
    _load_weights(network, weights, len(classes), file)
    return Predictor(
        network=laid_out(network, device).eval().requires_grad_(False),
        classes=tuple(classes),
        preprocessing=read.data.preprocessing,
        device=device,
        checkpoint=file,
        step=int(state.get("step", 0)),
        config=config,
        backbone=dict(state.get("backbone") or {}),
        max_pixels=read.data.max_pixels,
        dtype=of_a_run(read.train.precision, device, read.train.force_precision),
    )


def _given(config: dict[str, dict[str, Any]], weights: dict[str, Any]) -> int | None:
    """The width of the features that a run was shown in place of images."""
    first = weights.get("network.bottleneck.0.weight")
    if config["data"].get("name") != "features" or not isinstance(first, Tensor) or first.ndim != 2:
        return None
    return int(first.shape[1])


def _load_weights(network: Network, weights: dict[str, Any], num_classes: int, file: Path) -> None:
    """The `network.` entries of a run's weights; the method's own are left out."""
    given = {k.removeprefix("network."): v for k, v in weights.items() if str(k).startswith("network.")}
    given = {k: v for k, v in given.items() if isinstance(v, Tensor)}
    head = next((value for name, value in given.items() if name.startswith("classifier.") and value.ndim), None)
    if head is not None and len(head) != num_classes:
        raise BadCheckpoint(f"{file} names {num_classes} classes, and its classifier has {len(head)}: it is damaged")
    if why := misfit(network, given):
        raise BadCheckpoint(
            f"the weights in {file} are those of another architecture than its configuration names: {why}. Was it "
            "edited, or written by another version of fastget?"
        )
    network.load_state_dict(given, strict=False)
