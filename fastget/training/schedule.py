"""A run's length and intervals in steps, and what depends on the step: the learning rate and the term's weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastget.config import MethodConfig, TrainConfig
from fastget.methods.base import Method


@dataclass(frozen=True)
class Plan:
    """In steps."""

    epoch_steps: int
    max_steps: int
    warmup_steps: int
    eval_every: int
    checkpoint_every: int
    source_free: bool = False  # the warm-up and what follows it are two phases, each with a schedule of its own

    def phase(self, step: int) -> tuple[int, int]:
        """Steps done, and all steps: of the run, or of the phase that this step belongs to."""
        if not self.source_free:
            return step, self.max_steps
        if step < self.warmup_steps:
            return step, self.warmup_steps
        return step - self.warmup_steps, self.max_steps - self.warmup_steps

    def progress(self, step: int) -> float:
        """0 at the first step, 1 at the end, of the run or phase."""
        done, steps = self.phase(step)
        return done / steps


def make_plan(train: TrainConfig, method: type[Method], epoch_steps: int) -> Plan:
    """The plan of a run, its open values filled in."""
    max_steps = train.max_steps or train.epochs * epoch_steps
    warm = round(method.warm_share * max_steps) if "warm-up" in method.needs else 0
    eval_every = train.eval_every or max(1, max_steps // 10)
    plan = Plan(
        epoch_steps=epoch_steps,
        max_steps=max_steps,
        warmup_steps=warm if train.warmup_steps is None else train.warmup_steps,
        eval_every=eval_every,
        checkpoint_every=train.checkpoint_every or eval_every,
        source_free="source-free" in method.needs,
    )
    if "target" in method.needs and plan.warmup_steps >= max_steps:
        raise ValueError(
            f"train.warmup_steps ({plan.warmup_steps}) leaves no step for the method out of {max_steps}: "
            "lower it, or raise train.max_steps"
        )
    return plan


def renews(method: Method, plan: Plan, step: int) -> bool:
    """Whether `start_epoch` is called at this step, one after the method's first."""
    period = method.period(plan)
    return (step % plan.epoch_steps if period is None else (step - plan.warmup_steps) % period) == 0


def weight(method: MethodConfig, progress: float) -> float:
    """w(t)."""
    return method.weight * (progress if method.ramp == "linear" else 1)


def set_lr(optimizer: torch.optim.Optimizer, step: int, steps: int, decay: float = 10, frozen: bool = False) -> None:
    """lr(i) = lr0 * (1 + decay * i / I)^-0.75; 0 for what is marked as frozen, where that holds."""
    factor = (1 + decay * step / steps) ** -0.75
    for group in optimizer.param_groups:
        group["lr"] = 0.0 if frozen and group.get("frozen") else group["base_lr"] * factor
