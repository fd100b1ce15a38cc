"""TensorBoard events of a run: losses, accuracy, throughput, the prior against the labels, prototype drift, images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fastget.data.lists import UNLABELLED
from fastget.evaluation.score import Evaluation
from fastget.loading.loader import MEAN, STD

if TYPE_CHECKING:
    from fastget.training.engine import Engine

SHOWN = 32  # images of a sample


class Board:
    """Writes events, or nothing when it is off."""

    def __init__(self, folder: Path, on: bool, from_step: int) -> None:
        self._writer: Any = None
        self._mu: Tensor | None = None  # at the last evaluation
        if on:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=from_step or None)

    def log(self, step: int, losses: Mapping[str, float], speed: Mapping[str, float]) -> None:
        """A log interval."""
        if self._writer is None:
            return
        for name, value in losses.items():
            self._writer.add_scalar(f"loss/{name}" if name.startswith("loss") else f"structure/{name}", value, step)
        for name, value in speed.items():
            self._writer.add_scalar(f"run/{name}", value, step)

    def evaluated(self, engine: Engine, result: Evaluation) -> None:
        """An evaluation; accuracies are marked as what they are, oracles."""
        if self._writer is None:
            return
        step = engine.step
        for name, value in result.metrics().items():
            if value is not None:
                self._writer.add_scalar(f"target (oracle)/{name}", value, step)
        for name, value in result.label_free.items():
            if value is not None:
                self._writer.add_scalar(f"target (label-free)/{name}", value, step)
        if engine.get is not None and engine.before_metrics is not None:
            self._memory(engine, step)
        if step == engine.eval_every or step == engine.max_steps:
            self._images(engine, step)
        self._writer.flush()

    def _memory(self, engine: Engine, step: int) -> None:
        assert engine.get is not None
        pi, mu = engine.get.pi.detach().cpu(), engine.get.mu.detach().cpu()
        labels = engine.target.labels
        if not (labels == UNLABELLED).any():
            truth = torch.from_numpy(np.bincount(labels, minlength=len(pi)) / len(labels))
            self._writer.add_scalar(
                "prior/total variation from the labels (oracle)", (pi - truth).abs().sum() / 2, step
            )
        self._writer.add_scalar("prior/largest", pi.max(), step)
        self._writer.add_scalar("prior/smallest", pi.min(), step)
        self._writer.add_figure(
            "prior/against the labels (oracle)", prior_figure(pi, labels, engine.target.classes), step
        )
        if self._mu is not None:
            moved = 1 - torch.cosine_similarity(mu, self._mu, dim=1)
            self._writer.add_scalar("prototypes/mean drift (1 - cosine)", moved.mean(), step)
            self._writer.add_scalar("prototypes/largest drift", moved.max(), step)
        self._mu = mu

    def _images(self, engine: Engine, step: int) -> None:
        for name, loader in (("source", engine.source_loader), ("target", engine.target_loader)):
            batches = loader.batches(step)
            images = next(batches).images[:SHOWN].float().cpu()
            batches.close()
            shown = images * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
            self._writer.add_images(f"images/{name}", shown.clamp(0, 1).contiguous(), step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def prior_figure(pi: Tensor, labels: np.ndarray[Any, Any], classes: tuple[str, ...]) -> Any:
    """The memory's prior as bars, beside the true class distribution where it is known."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.add_subplot()
    place = np.arange(len(pi))
    axes.bar(place - 0.2, pi.numpy(), 0.4, label="prior pi")
    if not (labels == UNLABELLED).any():
        axes.bar(place + 0.2, np.bincount(labels, minlength=len(pi)) / len(labels), 0.4, label="labels (oracle)")
    if len(pi) <= 40:
        axes.set_xticks(place, classes, rotation=90 if len(pi) > 12 else 0)
    axes.set_ylabel("share")
    axes.legend()
    return figure
