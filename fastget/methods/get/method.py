"""GeT as a method of fastget's own trainer: the adapter between `Method` and the module `fastget.GeT`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from fastget import reference
from fastget.methods import settings
from fastget.methods.base import Agreement, Extra, Method, Need, Seen, Task, Term, Whole
from fastget.methods.get.module import GeT, Output


class GetMethod(Method):
    """METHOD.md: the memory starts after the warm-up from a pass over the target, and follows every step."""

    Config = settings.Get
    config: settings.Get
    capturable = True
    needs: ClassVar[frozenset[Need]] = frozenset({"target", "warm-up"})
    advice = "a longer train.warmup_steps, or a higher get.tau"

    def __init__(self, config: settings.Get, task: Task) -> None:
        super().__init__(config, task)
        known = config.partial if config.partial != "auto" else "yes" if task.setting == "pda" else "no"
        self.get = GeT(task.num_classes, task.feature_dim, config, partial=known, check_now=False)
        self._shown: Tensor | None = None  # mu at the last evaluation

    @property
    def partial(self) -> bool:
        return super().partial or self.config.partial == "yes"

    @property
    def extra(self) -> frozenset[Extra]:
        return frozenset({"whole target", "whole source"} if self.config.needs_source_means else {"whole target"})

    def start(self, whole: Whole) -> None:
        predictions = torch.split(whole.logits.argmax(1), [len(f) for f in whole.features])
        means = whole.source_means if self.config.needs_source_means else None
        self.get.initialise(whole.features, predictions, whole.classifier.weight, means)

    def start_epoch(self, whole: Whole) -> None:
        self.get.start_epoch()

    def keep(self, seen: Seen) -> Output:
        out: Output = self.get(seen.features, seen.classifier.weight, labels=seen.logits.detach().argmax(1))
        return out

    def forward(self, seen: Seen) -> Term:
        out = self.keep(seen)
        parts = ("loss_g", "loss_f", "structure_g", "structure_f")
        return Term(out.loss, {name: getattr(out, name) for name in parts}, out)

    def labels(self, seen: Seen) -> Tensor:
        return self.get.labels(seen.features)

    def after_step(self, seen: Seen, term: Term, skip: Tensor | None, again: Callable[[], Seen]) -> None:
        self.get.update(seen.features, term.kept, skip=skip)

    def check(self) -> None:
        self.get.check()

    def agreement(self) -> Agreement | None:
        """Of the nearest prototype and the nearest source mean, at the start."""
        (share, kappa), trust = self.get.agreement.tolist(), float(self.get.trust)
        if share < 0:
            return None  # nobody looked
        effect = f"The prior counts by {100 * trust:.0f} %, a uniform one by the rest" if trust else ""
        effect = "The prior is believed all the same (get.prior=plain)" if self.config.prior == "plain" else effect
        return Agreement(share, kappa, trust, effect or "The prior is left uniform")

    @torch.no_grad()
    def pseudo_labels(self, seen: Seen) -> dict[str, tuple[Tensor, Tensor]]:
        """y_M, Q_g and Q_f, rebalanced over all that is seen."""
        get, prior = self.get, self.get.prior
        heads = {"y_M": get.mu, "Q_g": seen.classifier.weight, "Q_f": get.mu_f}
        given = {name: reference.posterior(seen.features, m, prior.log_pi, get.tau) for name, m in heads.items()}
        for name in ("Q_g", "Q_f"):
            given[name] = reference.rebalance(given[name], None, prior.exponent, prior.power)
        return {name: (reference.first_argmax(Q), Q.max(1).values) for name, Q in given.items()}

    def figures(self) -> dict[str, Tensor]:
        pi, mu = self.get.pi.detach().cpu(), self.get.mu.detach().cpu()
        shown = {"prior": pi, "prior/largest": pi.max(), "prior/smallest": pi.min()}
        if (told := self.agreement()) is not None:
            shown |= {f"prior/{name}": torch.tensor(value) for name, value in told.numbers().items()}
        if self._shown is not None:
            moved = 1 - torch.cosine_similarity(mu, self._shown, dim=1)
            shown |= {"prototypes/mean drift (1 - cosine)": moved.mean(), "prototypes/largest drift": moved.max()}
        self._shown = mu
        return shown
