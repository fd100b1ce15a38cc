"""TensorBoard events of a run: losses, accuracy, throughput, the method's own figures, images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastget.data.lists import ImageList
from fastget.evaluation.classes import Classes
from fastget.evaluation.score import Evaluation
from fastget.loading.loader import Loader
from fastget.runs.sinks.classes import classes_figure, made_of

SHOWN = 32  # images of a sample


class Board:
    """Writes events, or nothing when it is off."""

    def __init__(self, folder: Path, on: bool, from_step: int) -> None:
        self.on = on
        self._writer: Any = None
        if on:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=from_step or None)

    def logged(self, step: int, losses: Mapping[str, float], speed: Mapping[str, float]) -> None:
        """A log interval."""
        if not self.on:
            return
        for name, value in losses.items():
            self._writer.add_scalar(f"{name.partition('_')[0]}/{name}", value, step)
        for name, value in speed.items():
            self._writer.add_scalar(f"run/{name}", value, step)

    def evaluated(self, step: int, result: Evaluation) -> None:
        """An evaluation; the target's accuracies are marked as what they are, oracles."""
        if not self.on:
            return
        for name, value in result.metrics().items():
            if value is not None:
                self._writer.add_scalar(f"target (oracle)/{name}", value, step)
        for name, value in result.label_free.items():
            if value is not None:
                self._writer.add_scalar(f"target (label-free)/{name}", value, step)
        for name, value in result.validation.metrics().items() if result.validation is not None else ():
            self._writer.add_scalar(f"validation/{name}", value, step)
        self._writer.flush()

    def figures(self, step: int, figures: Mapping[str, Tensor], target: ImageList) -> None:
        """What a method shows of its state: numbers, and shares of the classes beside the labels."""
        if not self.on:
            return
        for tag, value in figures.items():
            if value.ndim == 0:
                self._writer.add_scalar(tag, value, step)
                continue
            if value.shape != (len(target.classes),):
                shape = tuple(value.shape)
                raise ValueError(f"figures()[{tag!r}] must be a number or {len(target.classes)} shares, got {shape}")
            shares = value.detach().cpu()
            if target.labelled:
                off = (shares - torch.from_numpy(target.counts() / len(target))).abs().sum() / 2
                self._writer.add_scalar(f"{tag}/total variation from the labels (oracle)", off, step)
            self._writer.add_figure(f"{tag}/against the labels (oracle)", shares_figure(tag, shares, target), step)

    def classes(self, step: int, found: Classes, target: ImageList) -> None:
        """What the target is made of, at the end, where it can be told."""
        if self.on and not found.untold:
            self._writer.add_figure("classes", classes_figure(found, made_of(target.name)), step)

    def images(self, step: int, loaders: Mapping[str, Loader]) -> None:
        """A sample of what the network is shown at this step."""
        if not self.on:
            return
        for name, loader in loaders.items():
            batches = loader.batches(step)
            images = next(batches).images[:SHOWN].float().cpu()
            batches.close()
            made = loader.stream.preprocessing
            shown = images * torch.tensor(made.std).view(3, 1, 1) + torch.tensor(made.mean).view(3, 1, 1)
            self._writer.add_images(f"images/{name}", shown.clamp(0, 1).contiguous(), step)

    def close(self) -> None:
        if self.on:
            self._writer.close()


def shares_figure(name: str, shares: Tensor, target: ImageList) -> Any:
    """Shares of the classes as bars, beside the true ones where they are known."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.add_subplot()
    place = np.arange(len(shares))
    axes.bar(place - 0.2, shares.numpy(), 0.4, label=name)
    if target.labelled:
        axes.bar(place + 0.2, target.counts() / len(target), 0.4, label="labels (oracle)")
    if len(shares) <= 40:
        axes.set_xticks(place, target.classes, rotation=90 if len(shares) > 12 else 0)
    axes.set_ylabel("share")
    axes.legend()
    return figure
