"""What fastget adds to the paper's GeT, and nothing else: how pi starts, how it is estimated, what a step takes of it.

Equation numbers are those of fastget/METHOD.md; the paper's own equations are in fastget/reference.py.
Shapes: B images in a batch or N in the whole target, C classes, D feature width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastget.reference import Prior, cosine, first_argmax, one_hot, paper_prior, wide

COUNT_FLOOR = 1e-4  # (3*), (3'): the least entry of a pi that is counted: an empty bin must not be final
CHANCE, SURE = 0.4, 0.6  # (12): kappa up to which pi is not believed at all, and from which on it is in full
WIDE, NARROW = 0.70, 0.55  # (13): exp(H(p)) / C from which on l is 0, and up to which it is 1
REACH = 1.5  # (2'): a class counts in full from 1 / REACH of the typical share on
PRIOR_FLOOR = 1e-3  # (2'): the least entry of pi~, of a class's fair share 1 / C
SHARPENING = 3.0  # (6'): what l = 1 adds to the power of P


def nearest(cos: Tensor, cos_g: Tensor, tau: float) -> Tensor:
    """Eq. (3*): an image counts for its nearest prototype, by cosine with mu; the lowest class on a tie. (B, C)."""
    return one_hot(first_argmax(cos), cos.shape[1], cos.dtype)


def agreeing_votes(
    features: Tensor,  # (N, D)
    mu: Tensor,  # (C, D)
    source_means: Tensor,  # (C, D)
) -> Tensor:
    """The votes of (3'), of each class: images nearest to it in mu, in source_means, in both. (3, C)."""
    in_mu, in_source = cosine(features, mu), cosine(features, source_means)
    a, b = (one_hot(first_argmax(cos), mu.shape[0], cos.dtype) for cos in (in_mu, in_source))
    return torch.stack([a.sum(0), b.sum(0), (a * b).sum(0)])


def start_of(
    votes: Tensor,  # (3, C) of agreeing_votes, summed over the whole target
) -> tuple[Tensor, Tensor, Tensor]:
    """Eqs. (3') and (12): pi (C,), the agreeing images' histogram; trust () from Cohen's kappa; and (2,) the share r of
    images that agree, and kappa."""
    a, b, both = votes / votes[0].sum()
    r, by_chance = both.sum(), (a * b).sum()
    kappa = torch.where(by_chance < 1, (r - by_chance) / (1 - by_chance), 0)
    share = torch.where(r > 0, votes[2] / votes[2].sum(), 1 / len(a)).clamp_min(COUNT_FLOOR)
    return share / share.sum(), ((kappa - CHANCE) / (SURE - CHANCE)).clamp(0, 1), torch.stack([r, kappa])


@dataclass(frozen=True)
class PriorRule:
    """What a step takes of pi: Eqs. (12), (13), (2'), (6'), or what the paper takes."""

    trusted: bool = True  # off: the paper's
    partial: bool = False  # the target is known to lack classes

    @property
    def numbers(self) -> tuple[bool, float, float, float, float, float] | None:
        """For the kernels, which work the rule out themselves; None: the paper's."""
        return (self.partial, WIDE, NARROW, REACH, PRIOR_FLOOR, SHARPENING) if self.trusted else None

    def __call__(
        self,
        pi: Tensor,  # (C,)
        trust: Tensor,  # ()
    ) -> Prior:
        if not self.trusted:
            return paper_prior(pi)
        p = trust * wide(pi) + (1 - trust) / len(pi)  # (12)
        spread = (-torch.xlogy(p, p).sum()).exp() / len(p)
        narrow = ((WIDE - spread) / (WIDE - NARROW)).clamp(0, 1)  # (13): l
        narrow = torch.ones_like(narrow) if self.partial else narrow
        capped = (REACH * p / (p * p).sum()).clamp_max(1).pow(narrow)  # (2')
        capped = capped.clamp_min(PRIOR_FLOOR * capped.mean())
        return Prior((capped / capped.sum()).log(), (1 - narrow) / 2, 1 + SHARPENING * narrow)  # (6')
