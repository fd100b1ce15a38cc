"""GeT as a module for anyone's training loop: the memory (pi, mu, mu_f) and one step's E, C, M and update. README has
such a loop. Shapes: B images in a target batch, C classes, D feature width.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastget import reference
from fastget.common.fields import spelled_out
from fastget.common.ranks import world_size
from fastget.methods.backend import choose_backend
from fastget.methods.get.checks import check_count, check_features, check_labels, check_matrix, not_finite
from fastget.methods.get.prior import COUNT_FLOOR, PriorRule, agreeing_votes, nearest, start_of
from fastget.methods.get.start import Pass, split_totals
from fastget.methods.gone import refuse_gone
from fastget.methods.settings import Get

RECIPES = Get.presets  # GeT's own arguments by the names of its recipes


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
    the sums over it are all-reduced, once per step.
    """

    pi: Tensor  # (C,)
    mu: Tensor  # (C, D)
    trust: Tensor  # () how far pi is believed, 0 to 1, Eq. (12)
    agreement: Tensor  # (2,) on which share of the target its two labellers agree, and kappa; -1: nobody looked
    health: Tensor  # (2,) int64: updates so far, and the first that was refused (-1: none)
    log_pi: Tensor  # (C,) what a step takes of pi, which `prior` follows
    powers: Tensor  # (2,) the same, of Eq. (6)

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        config: Get | None = None,  # or its values one by one: tau=0.15, gamma_mu=0.1 ...
        *,
        check_now: bool | None = None,  # look at the values in every call; None: on a CPU. False: see check()
        process_group: dist.ProcessGroup | None = None,  # None: the default group, if there is one
        **values: Any,  # of Get; `partial` as True or False too
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes, 2)
        check_count("feature_dim", feature_dim, 1)
        if isinstance(values.get("partial"), bool):
            values["partial"] = "yes" if values["partial"] else "no"
        refuse_gone("get", values)
        config = dataclasses.replace(config or Get(), **values)
        choose_backend(config.backend, torch.device("cpu"))  # a missing backend is refused now, not in the step

        self.num_classes, self.feature_dim = int(num_classes), int(feature_dim)
        self.config, self.check_now, self.process_group = config, check_now, process_group
        self.tau, self.gamma_Q = config.tau, config.gamma_Q
        self.gamma_mu, self.gamma_pi = config.gamma_mu, config.gamma_pi
        self.rule = PriorRule(trusted=config.prior == "trusted", partial=config.partial == "yes")

        self.register_buffer("pi", torch.full((num_classes,), 1 / num_classes))
        self.register_buffer("mu", torch.zeros(num_classes, feature_dim))
        self.register_buffer("trust", torch.ones(()))
        self.register_buffer("agreement", -torch.ones(2))
        self.register_buffer("health", torch.tensor([0, -1]))
        self.register_buffer("log_pi", torch.zeros(num_classes), persistent=False)
        self.register_buffer("powers", torch.zeros(2), persistent=False)
        self.mu_f = nn.Parameter(torch.zeros(num_classes, feature_dim))
        self._followed: tuple[Any, ...] = ()  # the pi that log_pi and powers were made of
        self._start: Pass | None = None  # open between initialise() and the first step
        self._ready = False

    @torch.no_grad()
    def initialise(
        self,
        features: Tensor | Iterable[Tensor],  # (N, D): the whole target set, or chunks of it
        predictions: Tensor | Iterable[Tensor],  # (N,) int64 classes that the network predicts
        classifier_weight: Tensor,  # (C, D)
        source_means: Tensor | None = None,  # (C, D): each class's mean feature in the source
    ) -> None:
        """mu_c <- the mean feature of the images predicted as c; a class that nobody predicts takes W_c, scaled to
        the mean feature norm. pi starts by Eq. (3'), with prior_start="uniform" at 1/C; trust by Eq. (12).

        Chunks may come as lists in one call, or in several calls before the first step: the result is the same.
        Under torch.distributed each rank gives its share of the target, and all the same source_means.
        """
        weight = check_matrix("classifier_weight", classifier_weight, (self.num_classes, self.feature_dim))
        if source_means is not None:
            check_matrix("source_means", source_means, (self.num_classes, self.feature_dim))
            if bad := not_finite(source_means):
                raise ValueError(f"source_means are not finite in classes {bad}: give zeros to a class without images")
        elif self.config.needs_source_means:
            raise ValueError(
                "prior_start='agreement' and prior='trusted' need the source's class means: pass source_means=(C, D), "
                "each class's mean feature in the source, or build GeT with prior_start='uniform', prior='plain'"
            )
        start = self._start or Pass(self.num_classes, self.feature_dim, keep=self.config.needs_source_means)
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

        totals = self._all_reduce(start.total.clone())  # in place: more chunks may come
        sums, counts, rows, norm_sum = split_totals(totals, self.num_classes, self.feature_dim)
        if not rows > 0:
            raise ValueError("initialise() needs at least one target feature, got none")
        fallback = reference.unit(weight).to(sums) * (norm_sum / rows)
        means = sums / counts.clamp_min(1)[:, None]
        self.mu.copy_(torch.where(counts[:, None] > 0, means, fallback))
        self.mu_f.copy_(self.mu)
        self.pi.fill_(1 / self.num_classes)
        if source_means is not None and self.config.needs_source_means:
            self._start_prior(start.chunks, source_means.detach(), totals.device)
        self._ready = True

    def _start_prior(self, chunks: list[Tensor], source_means: Tensor, device: torch.device) -> None:
        """pi by Eq. (3') and trust by Eq. (12), from the votes of the whole target."""
        votes = torch.zeros(3, self.num_classes, dtype=self.pi.dtype, device=device)
        for chunk in chunks:
            ops = self._ops(chunk)
            count = agreeing_votes if ops is reference else ops.agreeing_votes
            votes += count(chunk, self.mu.to(chunk.device), source_means.to(chunk.device)).to(votes)
        pi, trust, agreement = start_of(self._all_reduce(votes))
        if self.config.prior_start == "agreement":
            self.pi.copy_(pi)
        self.trust.copy_(trust)
        self.agreement.copy_(agreement)

    @torch.no_grad()
    def start_epoch(self) -> None:
        """mu_f <- mu, as at the start of every epoch."""
        self.mu_f.copy_(self.mu)

    def forward(
        self,
        features: Tensor,  # (B, D), after the bottleneck
        classifier_weight: Tensor,  # (C, D), the bias is left out
        labels: Tensor | None = None,  # (B,) int64: the classifier's argmax, which (4*) needs
    ) -> Output:
        """E, C and the loss. Gradients flow to `features`, `classifier_weight` and `mu_f`."""
        self._check_started()
        self._check_step(features, classifier_weight, labels)
        ops, prior, config = self._ops(features), self.prior, self.config
        with torch.autocast(features.device.type, enabled=False):  # GeT widens half types itself
            e: reference.Expectation = ops.expectation(
                features, self.mu, classifier_weight, self.mu_f, prior.log_pi, self.tau,
                estimate=nearest if config.prior_estimate == "nearest" else reference.likelihood,
                labels=labels if config.prototype_labels == "head" else None,
            )  # fmt: skip
            self._all_reduce(e.statistics)
            gamma_Q = self.gamma_Q if config.mix else 0.0
            loss = ops.objective(e, prior, gamma_Q if config.kl_g else 1.0, gamma_Q if config.kl_f else 1.0)
        return Output(loss.loss, loss.loss_g, loss.loss_f, e.y_M, loss.structure_g, loss.structure_f, e)

    @property
    def prior(self) -> reference.Prior:
        """What a step takes of pi, by the rule of `fastget.methods.get.prior`."""
        prior = reference.Prior(self.log_pi, *self.powers.unbind())
        if not torch.compiler.is_compiling() and self._followed != self._of_pi():  # set by hand, loaded or moved
            self._ops(self.pi).renew_prior_(prior, self.pi, self.rule, self.trust)
            self._followed = self._of_pi()
        return prior

    @torch.no_grad()
    def labels(self, features: Tensor) -> Tensor:
        """(B,) int64 y_M, the generative classifier's labels as in Eq. (4), of any features (B, D)."""
        self._check_features(features, finite=self._look(features))
        self._check_started()
        ops = self._ops(features)
        with torch.autocast(features.device.type, enabled=False):
            return reference.first_argmax(ops.posterior(features, self.mu, self.prior.log_pi, self.tau))

    @torch.no_grad()
    def update(
        self,
        features: Tensor,  # (B, D), the same as in the forward call, detached
        out: Output,
        skip: Tensor | None = None,  # (), not 0: leave the memory alone, decided on the device
    ) -> None:
        """The memory: the prior by Eq. (3), the prototypes by Eq. (4). Call it after the optimizer's step."""
        e = out.expectation
        if features.shape != e.features.shape:
            raise ValueError(f"update() got features {[*features.shape]}, the forward call had {[*e.features.shape]}")
        floor = COUNT_FLOOR if self.config.prior_estimate == "nearest" else reference.PRIOR_FLOOR
        with torch.autocast(features.device.type, enabled=False):
            self._ops(features).update_memory_(
                self.mu, self.pi, self.health, e, self.gamma_mu, self.gamma_pi, floor=floor, skip=skip,
                prior=self.prior, rule=self.rule, trust=self.trust,
            )  # fmt: skip
        self._followed = self._of_pi()

    def check(self) -> None:
        """Raise if a batch with non-finite features was refused since the start. Waits for the device: call it at
        log intervals. (On a CPU the forward call itself raises, unless check_now=False.)"""
        refused = int(self.health[1])
        if refused >= 0:
            raise ValueError(
                f"non-finite features or prototypes in step {refused} of GeT: the memory was left as it was. "
                "Lower the learning rate, look at the images of that step, or use float32 in place of float16"
            )

    def _ops(self, x: Tensor) -> ModuleType:
        """The backend of what `x` is part of."""
        return choose_backend(self.config.backend, x.device)

    def _of_pi(self) -> tuple[Any, ...]:
        """What is another once anything but a step has changed pi or trust."""
        return tuple((id(x), x._version) for x in (self.pi, self.trust, self.log_pi))

    def _look(self, features: Tensor) -> bool:
        """Whether to look at values now: on a GPU that would make the host wait."""
        return features.device.type == "cpu" if self.check_now is None else self.check_now

    def _all_reduce(self, total: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if world_size(self.process_group) > 1:
            dist.all_reduce(total, group=self.process_group)
        return total

    def _check_started(self) -> None:
        if self._ready and self._start is None:
            return
        self._start = None  # the first step closes the start
        if not self._ready and not bool(self.mu.any()):
            warnings.warn(
                "GeT is used before initialise(): its prototypes are all zero, so y_M is class 0 everywhere. "
                "Call get.initialise(features, predictions, classifier.weight, source_means) after the warm-up",
                RuntimeWarning,
                stacklevel=3,
            )
        self._ready = True

    def _check_step(self, features: Tensor, weight: Tensor, labels: Tensor | None) -> None:
        look = self._look(features)
        self._check_features(features, finite=look)
        check_matrix("classifier_weight", weight, (self.num_classes, self.feature_dim))
        if labels is not None:
            check_labels("labels", labels, len(features), self.num_classes, in_range=look)
        elif self.config.prototype_labels == "head":
            raise ValueError(
                "prototype_labels='head' needs the classifier's labels: pass labels=logits.argmax(1) to the forward "
                "call, or build GeT with prototype_labels='y_M'"
            )

    def _check_features(self, features: Tensor, finite: bool) -> None:
        check_features(features, self.feature_dim, self.health if finite else None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GeT:
        """.to() and .cuda() move the memory; .half() and .bfloat16() leave it float32."""

        def wide(x: Tensor) -> Tensor:
            y = fn(x)
            return x.to(y.device) if y.is_floating_point() and y.itemsize < 4 else y

        return super()._apply(wide, recurse)  # type: ignore[no-untyped-call,no-any-return]  # torch leaves it untyped

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        for name in ("trust", "agreement"):  # fastget 0.2 had neither: it believed pi, and looked at nothing
            state.setdefault(prefix + name, getattr(self, name).detach().clone())
        super()._load_from_state_dict(state, prefix, *args)
        self._start, self._ready, self._followed = None, False, ()

    def extra_repr(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self.config).items())
        return f"{self.num_classes}, {self.feature_dim}, {values}"


GeT.__signature__ = spelled_out(GeT, Get)  # type: ignore[attr-defined]  # read by inspect and help()
