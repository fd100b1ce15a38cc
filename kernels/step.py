"""GeT's step with as little of the host as can be: one workspace per shape, launches bound once, checks at the first.

The first step of a shape goes through the ordinary launchers, and is traced. What they allocated becomes a workspace,
and later steps repeat the launches on it (kernels/bound.py). A workspace belongs to one step at a time, from its
expectation until nobody holds that step any more: neither its result nor its graph, which lets go in backward(). A step
that begins before takes another workspace. What a caller may keep (losses, metrics, y_M, gradients) is never part of
one.

Shapes: B images in a target batch, C classes, D feature width.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastget.kernels import configs
from fastget.kernels.bound import Bound, bind, repeat
from fastget.kernels.expectation import Expectation, check_expectation, form_of, run_expectation
from fastget.kernels.launch import traced
from fastget.kernels.logits import Scales, scales_of
from fastget.kernels.memory import check_update, run_update
from fastget.kernels.objective import Objective, paths, run_gradient, run_objective
from fastget.kernels.statistics import Statistics, statistics_views

MOST_SHAPES = 8  # of a module: the newest are kept
SPARE = 2  # workspaces of a shape that wait for a step
PLAIN = (Tensor, torch.nn.Parameter)


class Numbers(NamedTuple):
    """What a step is made with beside its tensors."""

    tau: float
    prior_estimate: str
    prior_shrinkage: bool
    prior_cap: bool
    prior_gate: bool
    rebalance_gate: bool
    use_y_M: bool
    gamma_g: float
    gamma_f: float


class Workspace:
    """What a step leaves in memory between its launches, and the launches on it."""

    S_g: Tensor  # what an Expectation holds, made by the first step
    S_f: Tensor
    statistics: Tensor
    views: Statistics
    exponent: Tensor
    scales: Any  # Scales, of all heads
    kept: Sequence[Tensor]  # what C leaves for the gradient

    def __init__(self, direct: bool) -> None:
        self.direct = direct
        self._expectation: list[Bound] = []
        self._objective: list[Bound] = []
        self._gradient: dict[Any, list[Bound]] = {}  # by which gradients come, and which are wanted
        self._update: dict[Any, list[Bound]] = {}  # by the memory's layout and the steps' sizes

    def expectation(self, given: Sequence[Tensor | None], numbers: Numbers) -> Tensor:
        """E on features, mu, mu_g, mu_f, pi and labels: y_M."""
        if self._expectation:
            y_M = torch.empty(len(self.S_g), dtype=torch.int64, device=self.S_g.device)
            repeat(self._expectation, (*given, y_M))
            return y_M
        features, mu, mu_g, mu_f, pi, labels = given = handles(given)
        tau, estimate, *forms, use_y_M, _, _ = numbers
        with traced() as calls:
            self.S_g, self.S_f, y_M, self.statistics, self.exponent, *scales = run_expectation(
                features, mu, mu_g, mu_f, pi, tau, estimate, form_of(*forms), use_y_M, labels
            )
        self.scales, self.views = scales_of(scales), statistics_views(self.statistics, self.S_g.shape[1])
        self._expectation = bind(calls, (*given, y_M), self.direct)
        return y_M

    def objective(self, vectors: Sequence[Tensor], y_M: Tensor, numbers: Numbers) -> Sequence[Tensor]:
        """C and the loss of features, mu_g and mu_f: loss, loss_g, loss_f, structure_g, structure_f."""
        if self._objective:
            device = self.S_g.device
            out = [torch.empty((), dtype=torch.float32, device=device) for _ in range(5)]
            repeat(self._objective, (y_M, *out))
            return out
        w = self.views
        given: Any = (*vectors, self.S_g, self.S_f, w.colsum_g, w.colsum_f, y_M, self.exponent, *self.scales,
                      numbers.tau, numbers.gamma_g, numbers.gamma_f)  # fmt: skip
        with traced() as calls:
            made = run_objective(*given)
        out, self.kept = list(made[:5]), made[5:]
        self._objective = bind(calls, (y_M, *out), self.direct)
        return out

    def gradient(
        self,
        vectors: Sequence[Tensor],  # features, mu_g, mu_f
        numbers: Numbers,
        grads: Sequence[Tensor | None],  # of loss, loss_g, loss_f
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        """Those of features, mu_g and mu_f that are needed and reached."""
        has = [g is not None for g in grads]
        wanted, key = paths(has, list(needs)), (*has, *needs)
        if not any(wanted):
            return [None, None, None]
        found: list[Tensor | None]
        if launches := self._gradient.get(key):
            found = [
                torch.empty(x.shape, dtype=x.dtype, device=x.device) if want else None
                for x, want in zip(vectors, wanted, strict=True)
            ]
            repeat(launches, (*grads, *found, *vectors))
            return found
        vectors, grads = handles(vectors), handles(grads)
        arrived = [g for g in grads if g is not None]
        given: Any = (*vectors, *self.scales[1:], *self.kept, numbers.tau, arrived, has, list(needs))
        with traced() as calls:
            made = iter(run_gradient(*given))
        found = [next(made) if want else None for want in wanted]
        self._gradient[key] = bind(calls, (*grads, *found), self.direct, may_lack=vectors)
        return found

    def update(
        self, memory: Sequence[Tensor], skip: Tensor | None, sizes: tuple[float, float, float], held: Held
    ) -> None:
        """Eqs. (3) and (4) on mu, pi and health."""
        mu, pi, health = memory
        key = (layout(mu), layout(pi), layout(health), layout(skip), sizes)
        if launches := self._update.get(key):
            repeat(launches, (mu, pi, health, skip))
            return
        sums, counts = check_update(mu, pi, health, held.whole(), skip)
        mu, pi, health, skip = handles((mu, pi, health, skip))
        with traced() as calls:
            run_update(mu, pi, health, sums, counts, *self.views[2:5], skip, *sizes)
        self._update[key] = bind(calls, (mu, pi, health, skip), self.direct)


class Lease:
    """A workspace for one step. It goes back to its shape's others when the step's result and graph are gone."""

    __slots__ = ("__weakref__", "_spare", "workspace")

    def __init__(self, spare: list[Workspace], direct: bool) -> None:
        self._spare = spare
        self.workspace = spare.pop() if spare else Workspace(direct)

    def __del__(self) -> None:
        if len(self._spare) < SPARE:
            self._spare.append(self.workspace)


class Held:
    """The expectation of a step, its fields those of `Expectation`. The workspace is lent to it: what is read from it
    beside what was given and y_M is a copy."""

    __slots__ = ("features", "lease", "mu_f", "mu_g", "numbers", "y_M")

    def __init__(
        self, lease: Lease, features: Tensor, mu_g: Tensor, mu_f: Tensor, y_M: Tensor, numbers: Numbers
    ) -> None:
        self.lease, self.features, self.mu_g, self.mu_f = lease, features, mu_g, mu_f
        self.y_M, self.numbers = y_M, numbers

    def whole(self) -> Expectation:
        """All fields, on the workspace itself."""
        w = self.lease.workspace
        given = (self.features, self.mu_g, self.mu_f, self.numbers.tau, w.S_g, w.S_f, self.y_M, w.statistics)
        return Expectation(*given, *w.views, w.exponent, w.scales)

    def __getattr__(self, name: str) -> Any:
        if name not in Expectation._fields:
            raise AttributeError(f"{type(self).__name__!r} has no {name!r}")
        value = getattr(self.whole(), name)
        if isinstance(value, Scales):
            return Scales(*(None if x is None else x.clone() for x in value))  # type: ignore[arg-type]
        return value.clone() if isinstance(value, Tensor) else value


def _gradients(ctx: Any, *grads: Tensor | None) -> Any:
    *vectors, token = ctx.saved_tensors
    lease = getattr(token, "lease", None) or ctx.lease()  # a hook on saved tensors may have made another token
    if lease is None:
        raise RuntimeError(
            "the workspace of this GeT step is gone: hooks on saved tensors replaced what held it. Keep the step's "
            "output until backward(), or use backend='reference'"
        )
    found = lease.workspace.gradient(vectors, ctx.numbers, grads[:3], ctx.needs_input_grad[:3])
    return (*found, None, None)


_gradients_once: Any = torch.autograd.function.once_differentiable(_gradients)  # where a graph of it is asked for


class _Objective(torch.autograd.Function):
    """C and the loss, whose gradient is that of kernels/objective.py."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, mu_g: Tensor, mu_f: Tensor, y_M: Tensor, held: Held) -> Any:
        out = tuple(held.lease.workspace.objective((features, mu_g, mu_f), y_M, held.numbers))
        token = torch.empty(0, device="cpu")
        token.lease = held.lease  # type: ignore[attr-defined]  # given back with the saved tensors, after backward()
        ctx.save_for_backward(features, mu_g, mu_f, token)
        ctx.lease, ctx.numbers = weakref.ref(held.lease), held.numbers
        ctx.mark_non_differentiable(*out[3:])
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return _gradients_once(ctx, *grads) if torch.is_grad_enabled() else _gradients(ctx, *grads)


class Steps:
    """The steps of one module, on one thread at a time."""

    def __init__(self, direct: bool) -> None:
        self.direct = direct  # whether compiled kernels are launched directly: bound.Bound
        self._spare: dict[Any, list[Workspace]] = {}

    def __reduce__(self) -> tuple[type[Steps], tuple[bool]]:
        """A copy has workspaces of its own."""
        return Steps, (self.direct,)

    @staticmethod
    def serves(*tensors: Tensor | None) -> bool:
        """Whether a step on these can have a workspace. Not while it is captured in a CUDA graph, which has memory of
        its own, nor on tensors that only stand for others."""
        first = tensors[0]
        assert first is not None
        if first.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        for x in tensors:
            if x is not None and type(x) not in PLAIN:
                return False
        return not torch.is_inference_mode_enabled()

    def expectation(
        self, features: Tensor, mu: Tensor, mu_g: Tensor, mu_f: Tensor, pi: Tensor, labels: Tensor | None,
        *given: Any,  # the fields of Numbers
        check: Callable[[], None],
        always: bool,
    ) -> Held:  # fmt: skip
        """reference.expectation. `check` is called where the shapes, types or numbers are new, or `always`."""
        numbers = Numbers(*given)
        stream = torch._C._cuda_getCurrentRawStream(features.device.index) if features.is_cuda else 0
        key = (layout(features), layout(mu), layout(mu_g), layout(mu_f), layout(pi), layout(labels), numbers, stream,
               configs.mode())  # fmt: skip
        spare = self._spare.get(key)
        if always or spare is None:
            check()
        if spare is None:
            check_expectation(features, mu, mu_g, mu_f, pi, numbers.tau, numbers.prior_estimate, labels)
            spare = self._spare[key] = []
            while len(self._spare) > MOST_SHAPES:
                del self._spare[next(iter(self._spare))]
        lease = Lease(spare, self.direct)
        y_M = lease.workspace.expectation((features, mu, mu_g, mu_f, pi, labels), numbers)
        return Held(lease, features, mu_g, mu_f, y_M, numbers)

    @staticmethod
    def made(e: Any) -> bool:
        """Whether an expectation is one of such steps."""
        return isinstance(e, Held)

    @staticmethod
    def objective(held: Held) -> Objective:
        """reference.objective."""
        return Objective(*_Objective.apply(held.features, held.mu_g, held.mu_f, held.y_M, held))

    @staticmethod
    def update(
        mu: Tensor, pi: Tensor, health: Tensor, held: Held, gamma_mu: float, gamma_pi: float, floor: float,
        skip: Tensor | None,
    ) -> None:  # fmt: skip
        """reference.update_memory_."""
        held.lease.workspace.update((mu, pi, health), skip, (gamma_mu, gamma_pi, floor), held)


def layout(x: Tensor | None) -> tuple[Any, ...] | None:
    """All that a launch on it depends on but the address."""
    return None if x is None else (x.dtype, x.device, x.shape, x.stride())


def handles(tensors: Sequence[Any]) -> list[Any]:
    """A handle of its own for each: the same tensor may have been given twice."""
    return [None if x is None else x.detach() for x in tensors]
