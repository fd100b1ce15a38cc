"""Inputs and measures that the kernels' tests share. Shapes: B images, C classes, D feature width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fastget import kernels, reference
from fastget.methods.get.prior import PriorRule

# Odd in every dimension; one row; two classes; more than one tile each way.
SHAPES = [(1, 2, 1), (5, 3, 7), (37, 67, 33), (18, 33, 130)]
P_TOLERANCE, LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-6, 1e-6, 5e-6  # against float64, where tau is at least PLAIN_TAU
PLAIN_TAU = 0.1  # below it 1 / tau magnifies the rounding of a float32 cosine, in PyTorch as in the kernels
P_SLACK, LOSS_SLACK, GRADIENT_SLACK = 2e-7, 1e-6, 2e-6  # beside the error of PyTorch's own float32


@dataclass(frozen=True)
class Batch:
    """One step's inputs."""

    features: Tensor  # (B, D)
    mu: Tensor  # (C, D)
    mu_g: Tensor  # (C, D)
    mu_f: Tensor  # (C, D)
    pi: Tensor  # (C,)
    labels: Tensor  # (B,) int64

    def to(self, dtype: torch.dtype) -> Batch:
        """Floating-point fields in `dtype`; fresh leaves."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return Batch(**{k: v.detach().to(dtype).clone() if v.is_floating_point() else v for k, v in moved.items()})

    def leaves(self, *names: str) -> Batch:
        """The same with fresh leaves that require a gradient."""
        return replace(self, **{n: getattr(self, n).detach().clone().requires_grad_() for n in names})


def batch(B: int, C: int, D: int, *, norm: float = 1.0, seed: int = 0) -> Batch:
    """Random features, prototypes and a skewed prior with entries at the floor: l of Eq. (13) is 1."""
    g = torch.Generator().manual_seed(seed)
    features, prototypes = torch.randn(B, D, generator=g), torch.randn(3, C, D, generator=g)
    pi = torch.rand(C, generator=g) ** 4
    pi = (pi / pi.sum()).clamp_min(1e-8)
    pi[-1] = 1e-8
    labels = torch.randint(0, C, (B,), generator=g)
    mu, mu_g, mu_f = prototypes.unbind()
    return Batch(features * norm, mu, mu_g, mu_f, pi, labels)


RULES: dict[str, reference.Rule] = {
    "paper": reference.paper_prior, "default": PriorRule(), "partial": PriorRule(partial=True),
}  # fmt: skip


def prior_of(x: Batch, rule: reference.Rule = reference.paper_prior) -> reference.Prior:
    """What a step takes of x.pi, by the rule in x's own type."""
    return rule(x.pi, torch.ones_like(x.pi[0]))


def empty_prior(C: int) -> reference.Prior:
    """Room for one, as GeT has it: two numbers side by side in one buffer."""
    return reference.Prior(torch.full((C,), torch.nan), *torch.full((2,), torch.nan).unbind())


def step_inputs(
    x: Batch, rule: reference.Rule = reference.paper_prior
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return x.features, x.mu, x.mu_g, x.mu_f, prior_of(x, rule).log_pi


def with_spread(x: Batch, spread: float) -> Batch:
    """The batch with that share of the classes in its prior, so that l is 0 above 0.7, 1 below 0.55."""
    pi = torch.full_like(x.pi, 1e-4)
    pi[: max(1, round(spread * len(pi)))] = 1
    return replace(x, pi=pi / pi.sum())


def error(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; NaN counts as infinite."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.numel() == 0:
        return 0.0
    worst = (actual.double() - expected.double()).abs().max()
    return float(worst) if bool(torch.isfinite(worst)) else float("inf")


def relative(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference over the largest expected value."""
    return error(actual, expected) / max(float(expected.abs().max()), 1e-30)


def check_P(found: Tensor, plain: Tensor, exact: Tensor, tau: float) -> None:
    """P or Q: no worse against float64 than PyTorch's float32 on the same input (CCE's rule), and near it.

    Below PLAIN_TAU one rounding of a cosine, 2^-24, is worth more than the slack: which of the two rounds luckier is
    chance there, and that rounding over tau is the slack.
    """
    slack = P_SLACK if tau >= PLAIN_TAU else max(P_SLACK, 2**-24 / tau)
    assert error(found, exact) <= error(plain, exact) + slack
    assert tau < PLAIN_TAU or error(found, exact) < P_TOLERANCE


def check_loss(found: Tensor, plain: Tensor, exact: Tensor, name: str = "loss") -> None:
    """The same rule for a loss, by its size where that is over 1."""
    size = max(1.0, abs(float(exact)))
    assert error(found, exact) <= error(plain, exact) + LOSS_SLACK * size, name


def check_gradients(
    found: Sequence[Tensor], plain: Sequence[Tensor], exact: Sequence[Tensor], tau: float = 0.0
) -> None:
    """The same rule for gradients, by their largest entry; without a `tau` the rule alone."""
    for i, (d, p, wanted) in enumerate(zip(found, plain, exact, strict=True)):
        mine, torchs = relative(d, wanted), relative(p, wanted)
        assert mine <= torchs + GRADIENT_SLACK, f"gradient {i}: {mine:.1e}, PyTorch's float32 {torchs:.1e}"
        assert tau < PLAIN_TAU or mine < GRADIENT_TOLERANCE, f"gradient {i}: {mine:.1e}"


def gradients(
    ops: ModuleType, x: Batch, tau: float, gammas: tuple[float, float] = (0.5, 0.5), weights: Any = (3.0, 0.0, 0.0),
    needs: tuple[str, ...] = ("features", "mu_g", "mu_f"), rule: reference.Rule = reference.paper_prior, **options: Any,
) -> tuple[Any, list[Tensor]]:  # fmt: skip
    """The objective, and the gradient of weights . (loss, loss_g, loss_f) to the inputs in `needs`."""
    x = x.leaves(*needs)
    out = ops.objective(ops.expectation(*step_inputs(x, rule), tau, **options), prior_of(x, rule), *gammas)
    total = sum(w * value for w, value in zip(weights, (out.loss, out.loss_g, out.loss_f), strict=True) if w)
    total.backward()
    found = [getattr(x, n).grad for n in needs]
    return out, found


def rebalanced(e: Any, prior: reference.Prior) -> tuple[Tensor, Tensor]:
    """Q_g and Q_f as the objective makes them, from what an expectation hands on."""
    Q_g, Q_f = (
        reference.rebalance_logits(S, c, prior.exponent.to(S), prior.power.to(S))
        for S, c in ((e.S_g, e.colsum_g), (e.S_f, e.colsum_f))
    )
    return Q_g, Q_f


@contextmanager
def nan_filled() -> Iterator[None]:
    """torch.empty gives NaN (or the lowest integer): an element that no kernel wrote shows."""
    empty = torch.empty

    def filled(*args: Any, **kwargs: Any) -> Tensor:
        out = empty(*args, **kwargs)
        return out.fill_(float("nan") if out.is_floating_point() else torch.iinfo(out.dtype).min)

    with patch.object(torch, "empty", filled):
        yield


def half_rule(
    run: Callable[[ModuleType, Batch], Sequence[Tensor]], x: Batch, dtype: torch.dtype, tolerance: float = 1e-6
) -> None:
    """CCE's rule: the kernel's error against float32 on the same values is at most PyTorch's own error in `dtype`."""
    x = x.to(dtype)
    everything = run(reference, x.to(torch.float32)), run(kernels, x), run(Half(dtype), x)  # type: ignore[arg-type]
    for i, (exact, kernel, torch_at_type) in enumerate(zip(*everything, strict=True)):
        kernel_error, torch_error = error(kernel, exact), error(torch_at_type, exact)
        assert kernel_error <= torch_error + tolerance, f"{i}: kernel {kernel_error:.2e}, torch {torch_error:.2e}"


class Half:
    """The reference with its widening to float32 taken out: PyTorch at the type itself."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(reference, name)

        def narrow(*args: Any, **kwargs: Any) -> Any:
            args = tuple(a.to(self.dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
            with patch.object(reference, "wide", lambda x: x):
                return function(*args, **kwargs)

        return narrow


Run = Callable[[ModuleType, Tensor, Tensor, Tensor], Tensor]


def weight_of(x: Batch) -> Tensor:
    return torch.randn(len(x.features), len(x.mu), generator=torch.Generator().manual_seed(5))


def with_gradients(ops: ModuleType, run: Run, x: Batch, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    """`run`'s result, and the gradient of weight . result to features, prototypes and log prior."""
    leaves = [t.detach().clone().requires_grad_() for t in (x.features, x.mu_g, x.pi.log())]
    out = run(ops, *leaves)
    return out.detach(), list(torch.autograd.grad((out * weight.to(out.dtype)).sum(), leaves))


def posteriors(B: int, C: int) -> Tensor:
    P = torch.softmax(3 * torch.randn(B, C, generator=torch.Generator().manual_seed(B)), 1)
    P[:, C // 2] = 0  # a column of mass zero
    return P
