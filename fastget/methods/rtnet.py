"""RTNet's formulas (Chen et al., CVPR 2020) in fastget's reading: an agent keeps or drops each source image.

The public code has neither this reward nor the adversarial version whose figures are published: its reward does not
depend on the actions. What is here is the paper's idea in its smallest form.

Shapes: B images, D feature width, A = 2 actions (0: drop, 1: keep).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastget.common.ranks import global_mean
from fastget.methods.minent import entropies
from fastget.reference import Number


def rtnet_errors(
    rebuilt: Tensor,  # (B, D) the decoder's
    f: Tensor,  # (B, D)
) -> Tensor:
    """(B,) |rebuilt_b - f_b|^2 / D. Features are constants, so that the gradient goes to the decoder; its loss is the
    mean over the target's rows."""
    return (rebuilt - f.detach()).square().mean(1)


def rtnet_rewards(
    errors: Tensor,  # (B,) of source rows
    target_error: Tensor,  # () the target's mean error
    baseline: Number,  # a running mean of rewards
    actions: Tensor,  # (B,) int64
) -> Tensor:
    """(B,) exp(-e_i / e_target) - baseline for a kept row, 0 for a dropped one. A constant."""
    rewards = torch.exp(-errors.detach() / target_error.detach().clamp_min(torch.finfo(errors.dtype).tiny)) - baseline
    return torch.where(actions > 0, rewards, 0)


def rtnet_actor(
    z: Tensor,  # (B, A) the actor's logits
    actions: Tensor,  # (B,) int64, those taken
    advantages: Tensor,  # (B,) rewards less the critic's values
    entropy: float = 0.01,
) -> Tensor:
    """-mean_i log pi(a_i) * advantage_i - entropy * mean_i H(pi_i), pi = softmax(z), over the global batch. The
    gradient goes to z; advantages are constants."""
    taken = torch.log_softmax(z, 1).gather(1, actions[:, None])[:, 0]
    return -global_mean(taken * advantages.detach()) - entropy * global_mean(entropies(z))
