"""GeT as a module for anyone's training loop: the memory (pi, mu, mu_f) and one step's E, C, M and update.

    get = fastget.GeT(num_classes=65, feature_dim=256)
    get.initialise(features, predictions, classifier.weight, source_means)    # once, after warm-up
    get.start_epoch()                                           # mu_f <- mu
    out = get(target_features, classifier.weight, labels=logits.argmax(1))
    (source_loss + out.loss).backward()
    get.update(target_features.detach(), out)

Shapes: B images in a target batch, C classes, D feature width.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastget import reference
from fastget.common.choices import Backend, OnCPU
from fastget.common.ranks import world_size
from fastget.common.shown import is_shown
from fastget.methods.backend import choose_backend
from fastget.methods.get import fused
from fastget.methods.get.checks import check_count, check_features, check_labels, check_source_means, check_weight
from fastget.methods.get.start import Start, split_totals
from fastget.methods.settings import Get

RECIPES = Get.presets  # GeT's own arguments under two names

NEAREST_FLOOR = 1e-4  # (3*) counts, where the other estimates are sums of softmaxes: an empty bin must not be final


class Output(NamedTuple):
    """One step's result. `loss` is the target term of Eq. (11); only the losses carry a gradient."""

    loss: Tensor  # loss_g + loss_f
    loss_g: Tensor
    loss_f: Tensor
    y_M: Tensor  # (B,) int64, hard labels of the generative classifier
    structure_g: Tensor  # Eq. (5), a metric
    structure_f: Tensor
    expectation: reference.Expectation  # for update()


class GeT(nn.Module):
    """Generative target structure debiasing, METHOD.md's Eqs. (2)-(11).

    `pi` and `mu` are buffers, `mu_f` is a parameter: give it to your optimizer. Everything is float32;
    half-precision features are accumulated in float32. Under torch.distributed a batch is the global batch:
    the sums over it are all-reduced, once a step when `labels` are given to the forward call.
    """

    pi: Tensor
    mu: Tensor
    health: Tensor
    # the values of `fastget.methods.settings.Get`, where their meanings, defaults and ranges are
    tau: float
    gamma_mu: float
    gamma_pi: float
    gamma_Q: float
    prior_estimate: Literal["likelihood", "posterior", "nearest"]
    prior_start: Literal["estimate", "agreement"]
    prior_cap: bool
    prior_gate: bool
    rebalance_gate: bool
    prior_shrinkage: bool
    prototype_labels: Literal["head", "y_M"]
    kl_g: bool
    kl_f: bool
    mix: bool
    backend: Backend
    on_cpu: OnCPU

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        config: Get | None = None,  # or its values one by one: tau=0.15, gamma_mu=0.01 ...
        *,
        check_now: bool | None = None,  # look at the values in every call; None: on a CPU. False: see check()
        process_group: dist.ProcessGroup | None = None,  # None: the default group, if there is one
        **values: Any,
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes, 2)
        check_count("feature_dim", feature_dim, 1)
        config = dataclasses.replace(config or Get(), **values)
        choose_backend(config.backend, torch.device("cpu"))  # a missing backend is refused now, not in the step

        self.num_classes, self.feature_dim = int(num_classes), int(feature_dim)
        for field in dataclasses.fields(config):
            setattr(self, field.name, getattr(config, field.name))
        self.check_now = check_now
        self.process_group = process_group

        self.register_buffer("pi", torch.full((num_classes,), 1 / num_classes))
        self.register_buffer("mu", torch.zeros(num_classes, feature_dim))
        self.register_buffer("health", torch.tensor([0, -1]))  # updates so far; the first refused one
        self.mu_f = nn.Parameter(torch.zeros(num_classes, feature_dim))
        self._steps: Any = None  # fastget.kernels.step.Steps, where the kernels run
        self._place: tuple[str, str, torch.device] | None = None  # the backend and the device that they run on
        self._start: Start | None = None  # open between initialise() and the first step
        self._ready = False

    # --- the memory's start -------------------------------------------------------------------

    @torch.no_grad()
    def initialise(
        self,
        features: Tensor | Iterable[Tensor],  # (N, D): the whole target set, or chunks of it
        predictions: Tensor | Iterable[Tensor],  # (N,) int64 classes that the network predicts
        classifier_weight: Tensor,  # (C, D)
        source_means: Tensor | None = None,  # (C, D): each class's mean feature in the source, which (3') needs
    ) -> None:
        """mu_c <- the mean feature of the images predicted as c; a class that nobody predicts takes W_c, scaled to
        the mean feature norm. pi starts by Eq. (3'), with prior_start="estimate" at 1/C, or, where the estimate is
        "nearest", as Eq. (3*)'s histogram over the whole target.

        Chunks may come as lists in one call, or in several calls before the first step: the result is the same.
        Under torch.distributed each rank gives its share of the target, and all the same source_means.
        """
        weight = check_weight(classifier_weight, (self.num_classes, self.feature_dim))
        if source_means is not None:
            check_source_means(source_means, (self.num_classes, self.feature_dim))
        elif self.prior_start == "agreement":
            raise ValueError(
                "prior_start='agreement' needs the source's class means: pass source_means=(C, D), each class's "
                "mean feature in the source, or build GeT with prior_start='estimate'"
            )
        counted = self.prior_start == "agreement" or self.prior_estimate == "nearest"
        start = self._start or Start(self.num_classes, self.feature_dim, keep=counted)
        feature_chunks = [features] if isinstance(features, Tensor) else list(features)
        prediction_chunks = [predictions] if isinstance(predictions, Tensor) else list(predictions)
        if len(feature_chunks) != len(prediction_chunks):
            raise ValueError(
                f"initialise() got {len(feature_chunks)} chunks of features and {len(prediction_chunks)} of predictions"
            )
        for chunk, predicted in zip(feature_chunks, prediction_chunks, strict=True):
            self._check_features(chunk, finite=True)
            check_labels("predictions", predicted, len(chunk), self.num_classes, in_range=True)
            start.add(chunk.detach(), predicted)
        if self._start is None:
            self.health.copy_(torch.tensor([0, -1]))  # a new start
        self._start = start

        totals = self._all_reduce(start.totals())
        sums, counts, rows, norm_sum = split_totals(totals, self.num_classes, self.feature_dim)
        if not rows > 0:
            raise ValueError("initialise() needs at least one target feature, got none")
        fallback = reference.unit(weight).to(sums) * (norm_sum / rows)
        means = sums / counts.clamp_min(1)[:, None]
        self.mu.copy_(torch.where(counts[:, None] > 0, means, fallback))
        self.mu_f.copy_(self.mu)
        if counted:
            self._start_prior(start.chunks, rows, source_means if self.prior_start == "agreement" else None)
        self._ready = True

    def _start_prior(self, chunks: list[Tensor], rows: Tensor, source_means: Tensor | None) -> None:
        """pi <- each class's share of the votes of Eq. (3'), 1/C if no image votes; without source means the histogram
        of Eq. (3*)."""
        votes = torch.zeros(self.num_classes, device=rows.device)
        for chunk in chunks:
            ops, mu = self._ops(chunk), self.mu.to(chunk.device)
            if source_means is not None:
                votes += ops.agreeing_votes(chunk, mu, source_means.detach().to(chunk.device)).to(votes)
            else:
                votes += ops.nearest_histogram(chunk, mu).to(votes) * len(chunk)
        self._all_reduce(votes)
        if source_means is None:
            self.pi.copy_(reference.update_prior(self.pi.to(votes.device), votes / rows.float(), 1.0, self._floor))
            return
        voters = votes.sum()
        share = torch.where(voters > 0, votes / voters, 1 / self.num_classes).clamp_min(NEAREST_FLOOR)
        self.pi.copy_(share / share.sum())

    @torch.no_grad()
    def start_epoch(self) -> None:
        """mu_f <- mu, as at the start of every epoch."""
        self.mu_f.copy_(self.mu)

    # --- one step -----------------------------------------------------------------------------

    def forward(
        self,
        features: Tensor,  # (B, D), after the bottleneck
        classifier_weight: Tensor,  # (C, D), the bias is left out
        labels: Tensor | None = None,  # (B,) int64: the classifier's argmax, which (4*) needs
    ) -> Output:
        """E, C and the loss. Gradients flow to `features`, `classifier_weight` and `mu_f`."""
        self._check_started()
        if steps := self._steps_on(features, classifier_weight, labels):
            held = steps.expectation(
                features, self.mu, classifier_weight, self.mu_f, self.pi,
                labels if self.prototype_labels == "head" else None,
                self.tau, self.prior_estimate, self.prior_shrinkage, self.prior_cap, self.prior_gate,
                self.rebalance_gate, self.prototype_labels == "y_M",
                self._label_weight(self.kl_g), self._label_weight(self.kl_f),
                check=lambda: self._check_step(features, classifier_weight, labels),
                always=self._look(features),
            )  # fmt: skip
            self._all_reduce(held.lease.workspace.statistics)
            return _output(steps.objective(held), held)
        self._check_step(features, classifier_weight, labels)
        ops = self._ops(features)
        with _wide(features):
            e = ops.expectation(
                features, self.mu, classifier_weight, self.mu_f, self.pi, self.tau,
                prior_estimate=self.prior_estimate, prior_shrinkage=self.prior_shrinkage, prior_cap=self.prior_cap,
                prior_gate=self.prior_gate, rebalance_gate=self.rebalance_gate,
                use_y_M=self.prototype_labels == "y_M",
                labels=labels if self.prototype_labels == "head" else None,
            )  # fmt: skip
            self._all_reduce(e.statistics)
            loss = ops.objective(e, self._label_weight(self.kl_g), self._label_weight(self.kl_f))
        return _output(loss, e)

    @property
    def prior(self) -> Tensor:
        """(C,) what stands for pi in every posterior: Eq. (2"), (2'), (2*), or pi itself."""
        ops = self._ops(self.pi)
        pi: Tensor = ops.shrink_prior(self.pi) if self.prior_shrinkage else self.pi
        pi = ops.cap_prior(pi, self.prior_gate) if self.prior_cap else pi  # one of the two at most
        return pi

    @torch.no_grad()
    def labels(self, features: Tensor) -> Tensor:
        """(B,) int64 y_M, the generative classifier's labels as in Eq. (4), of any features (B, D)."""
        self._check_features(features, finite=self._look(features))
        self._check_started()
        ops = self._ops(features)
        with _wide(features):
            return reference.first_argmax(ops.posterior(features, self.mu, self.prior.log(), self.tau))

    def update(
        self,
        features: Tensor,  # (B, D), the same as in the forward call, detached
        out: Output,
        skip: Tensor | None = None,  # (), not 0: leave the memory alone, decided on the device
    ) -> None:
        """The memory: the prior by Eq. (3), the prototypes by Eq. (4). Call it after the optimizer's step."""
        e = out.expectation
        if features.shape != e.features.shape:
            self._check_features(features, finite=False)
            raise ValueError(f"update() got {len(features)} features, the forward call had {len(e.features)}")
        if self._steps is not None and self._steps.made(e):
            self._steps.update(self.mu, self.pi, self.health, e, self.gamma_mu, self.gamma_pi, self._floor, skip)
            return
        ops = self._ops(features)
        with torch.no_grad(), _wide(features):
            ops.update_memory_(
                self.mu, self.pi, self.health, e, self.gamma_mu, self.gamma_pi, floor=self._floor, skip=skip
            )

    def check(self) -> None:
        """Raise if a batch with non-finite features was refused since the start. Waits for the device: call it at
        log intervals. (On a CPU the forward call itself raises, unless check_now=False.)"""
        refused = int(self.health[1])
        if refused >= 0:
            raise ValueError(
                f"non-finite features or prototypes in step {refused} of GeT: the memory was left as it was. "
                "Lower the learning rate, look at the images of that step, or use float32 in place of float16"
            )

    # --- details ------------------------------------------------------------------------------

    def _ops(self, x: Tensor) -> ModuleType:
        """Who computes what `x` is part of."""
        return choose_backend(self.backend, x.device, self.on_cpu)

    def _steps_on(self, features: Tensor, *others: Tensor | None) -> Any:
        """The kernels' steps with a workspace; None where this one calls the functions of its backend."""
        if torch.compiler.is_compiling():
            return None
        place = (self.backend, self.on_cpu, features.device)
        if place != self._place:
            ops, self._place, self._steps = self._ops(features), place, None
            if ops is not reference and ops is not fused:
                from fastget.kernels.step import Steps

                self._steps = Steps(direct=is_shown("bound launches", features.device))
        return self._steps if self._steps is not None and self._steps.serves(features, *others) else None

    @property
    def _floor(self) -> float:
        return NEAREST_FLOOR if self.prior_estimate == "nearest" else reference.PRIOR_FLOOR

    def _look(self, features: Tensor) -> bool:
        """Whether to look at values now: on a GPU that would make the host wait."""
        return features.device.type == "cpu" if self.check_now is None else self.check_now

    def _label_weight(self, kl: bool) -> float:
        """The weight of onehot(y_M) in a head's labels, Eq. (10)."""
        return (self.gamma_Q if self.mix else 0.0) if kl else 1.0

    def _world_size(self) -> int:
        return world_size(self.process_group)

    def _all_reduce(self, total: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self._world_size() > 1:
            dist.all_reduce(total, group=self.process_group)
        return total

    def _check_started(self) -> None:
        if self._ready and self._start is None:
            return
        self._start = None  # the first step closes the start
        if not self._ready:
            if not bool(self.mu.any()):
                warnings.warn(
                    "GeT is used before initialise(): its prototypes are all zero, so y_M is class 0 everywhere. "
                    "Call get.initialise(features, predictions, classifier.weight) after the warm-up",
                    RuntimeWarning,
                    stacklevel=3,
                )
            self._ready = True

    def _check_step(self, features: Tensor, weight: Tensor, labels: Tensor | None) -> None:
        look = self._look(features)
        self._check_features(features, finite=look)
        check_weight(weight, (self.num_classes, self.feature_dim))
        if labels is not None:
            check_labels("labels", labels, len(features), self.num_classes, in_range=look)
        elif self.prototype_labels == "head":
            raise ValueError(
                "prototype_labels='head' needs the classifier's labels: pass labels=logits.argmax(1) to the forward "
                "call, or build GeT with prototype_labels='y_M'"
            )

    def _check_features(self, features: Tensor, finite: bool) -> None:
        check_features(features, self.feature_dim, self.health if finite else None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GeT:
        """.to() and .cuda() move the memory; .half() and .bfloat16() leave it float32."""
        before = {name: tensor.detach() for name, tensor in (*self.named_buffers(), *self.named_parameters())}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with torch.no_grad():
            for name, tensor in (*self.named_buffers(), *self.named_parameters()):
                if tensor.is_floating_point() and tensor.itemsize < 4:
                    tensor.data = before[name].to(tensor.device)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._start, self._ready = None, False

    def extra_repr(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(Get))
        return f"{self.num_classes}, {self.feature_dim}, {values}"


def _output(loss: reference.Objective, e: reference.Expectation) -> Output:
    return Output(loss.loss, loss.loss_g, loss.loss_f, e.y_M, loss.structure_g, loss.structure_f, e)


def _wide(features: Tensor) -> AbstractContextManager[Any]:
    """GeT widens half types itself: no autocast inside."""
    kind = features.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _signature() -> inspect.Signature:
    """GeT's arguments as help() shows them: those of Get, one by one, in place of **values."""
    given = list(inspect.signature(GeT).parameters.values())
    own = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in dataclasses.fields(Get)
    ]
    return inspect.Signature([*given[:3], *own, *given[3:-1]])


GeT.__signature__ = _signature()  # type: ignore[attr-defined]  # read by inspect and help()
