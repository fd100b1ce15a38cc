"""One GeT step with either backend: what the counts, the self-test and the benchmarks run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepInputs:
    """The tensors of one step."""

    features: Tensor  # (B, D)
    mu: Tensor  # (C, D)
    mu_g: Tensor  # (C, D)
    mu_f: Tensor  # (C, D)
    pi: Tensor  # (C,)
    labels: Tensor  # (B,) int64
    health: Tensor  # (2,) int64

    @staticmethod
    def make(make: Callable[..., Tensor], B: int, C: int, D: int, dtype: torch.dtype) -> StepInputs:
        """`make(*shape, dtype=...)` is called for each tensor; the three that are learnt require a gradient."""
        return StepInputs(
            features=make(B, D, dtype=dtype).requires_grad_(),
            mu=make(C, D, dtype=torch.float32),
            mu_g=make(C, D, dtype=torch.float32).requires_grad_(),
            mu_f=make(C, D, dtype=torch.float32).requires_grad_(),
            pi=make(C, dtype=torch.float32),
            labels=make(B, dtype=torch.int64),
            health=make(2, dtype=torch.int64),
        )


def step(ops: ModuleType, x: StepInputs, *, tau: float = 0.15, gamma_Q: float = 0.5) -> tuple[Tensor, Any]:
    """One GeT step under METHOD.md's defaults: E, C and the loss, backward, memory. The loss and its expectation."""
    e = ops.expectation(x.features, x.mu, x.mu_g, x.mu_f, x.pi, tau, labels=x.labels)
    loss: Tensor = ops.objective(e, gamma_Q, gamma_Q).loss
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    ops.update_memory_(x.mu, x.pi, x.health, e, 0.01, 0.01)
    return loss, e
