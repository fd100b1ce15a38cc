"""One step of `fastget.GeT` itself: what is counted, compiled, timed, drawn and tried on a card is what runs.

    x = StepInputs.make(36, 65, 256, recipe="paper", backend="reference")
    out = step(x)

Shapes: B images in a target batch, C classes, D feature width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastget.kernels.launch import Launch, record
from fastget.methods.get.module import RECIPES, GeT, Output
from fastget.methods.settings import Get

Make = Callable[..., Tensor]  # (*shape, dtype) -> a tensor with anything in it


class StepInputs(NamedTuple):
    """What one step takes."""

    get: GeT
    features: Tensor  # (B, D)
    weight: Tensor  # (C, D) the classifier's
    labels: Tensor | None  # (B,) int64 the classifier's, where the settings ask for them

    @staticmethod
    def make(
        B: int, C: int, D: int, dtype: torch.dtype = torch.float32, recipe: str = "default", backend: str = "triton",
        make: Make = torch.empty, **values: Any,
    ) -> StepInputs:  # fmt: skip
        """GeT by a recipe, and `values` of its settings in place of the recipe's, at the start of its memory.

        On the device of `with torch.device(...)`. `make` is asked for features and weight; labels are 0 to C - 1 in
        turn."""
        config = Get(**{**RECIPES[recipe], "backend": backend, **values})
        get = GeT(C, D, config, check_now=False)
        get._ready = True  # a memory of zeros is as good as another
        features, weight = make(B, D, dtype=dtype).requires_grad_(), make(C, D, dtype=torch.float32).requires_grad_()
        labels = torch.arange(B) % C if config.prototype_labels == "head" else None
        return StepInputs(get, features, weight, labels)


def step(x: StepInputs, loss: str = "loss", skip: Tensor | None = None) -> Output:
    """E, C and the loss, backward, memory."""
    out: Output = x.get(x.features, x.weight, x.labels)
    getattr(out, loss).backward()
    x.get.update(x.features.detach(), out, skip)
    return out


def dry_step(x: StepInputs) -> list[Launch]:
    """The launches of a step, not run. What GeT takes of pi is there before: the step before has written it."""
    with record(dry=True) as launches:
        assert x.get.prior  # the launch that a start makes
        launches.clear()
        step(x)
    return launches


def launches_of(
    B: int, C: int, D: int, dtype: torch.dtype = torch.float32, recipe: str = "default", **values: Any
) -> list[Launch]:
    """Those of a step of such sizes, not run."""
    return dry_step(StepInputs.make(B, C, D, dtype, recipe, **values))
