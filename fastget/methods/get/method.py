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
        asked: frozenset[Extra] = frozenset({"whole target"})
        return asked | {"whole source"} if self.config.needs_source_means else asked

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
        parts = {"loss_g": out.loss_g, "loss_f": out.loss_f}
        parts |= {"structure_g": out.structure_g, "structure_f": out.structure_f}
        return Term(out.loss, parts, out)

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
        if self.config.prior == "plain":
            effect = "The prior is believed all the same (get.prior=plain)"
        elif trust > 0:
            effect = f"The prior counts by {100 * trust:.0f} %, a uniform one by the rest"
        else:
            effect = "The prior is left uniform"
        return Agreement(share, kappa, trust, effect)

    @torch.no_grad()
    def pseudo_labels(self, seen: Seen) -> dict[str, tuple[Tensor, Tensor]]:
        """y_M, Q_g and Q_f, rebalanced over all that is seen."""
        get, prior = self.get, self.get.prior
        P, P_g, P_f = (
            reference.posterior(seen.features, prototypes, prior.log_pi, get.tau)
            for prototypes in (get.mu, seen.classifier.weight, get.mu_f)
        )
        Q_g, Q_f = (reference.rebalance(P_h, None, prior.exponent, prior.power) for P_h in (P_g, P_f))
        given = {"y_M": P, "Q_g": Q_g, "Q_f": Q_f}
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
