"""GeT's fused Triton kernels, under the names and signatures of `fastget.reference`.

A step is six launches, each waiting for sums that the one before it made:

1. logits.py      E: logits under mu, mu_g and mu_f from one read of the features, norms, partials of softmax and argmax
2. statistics.py  y_M, and the packed sums that many ranks add up: column sums, prior estimate, bad rows, class sums
3. objective.py   C: Q, labels, the rows' losses
4. objective.py   the losses and metrics, added up
5. backward.py    gradients to features, mu_g and mu_f
6. memory.py      prototypes, prior, and what the next step takes of it

Every sum has one owner that adds in a fixed order: no atomics, the same bits each time. Around a launch stand tile.py
(device functions that several share, and a legend of names), configs.py (block sizes), checks.py (what is refused),
wrap.py (eager and compiled operators) and launch.py. equations/ holds what is an operator by itself: the posterior, the
scatter update, the rebalancing, the votes. audit/ finds what they cost, tuning/ what is fastest on a card.
"""

if __name__ != "fastget.kernels":
    raise ImportError(
        f"this package is imported as 'fastget.kernels', not as {__name__!r}: "
        "write `from fastget import kernels` (a bare `kernels` is another project's name)"
    )

from fastget.kernels.equations.posterior import posterior
from fastget.kernels.equations.rebalance import rebalance
from fastget.kernels.equations.scatter import scatter_update
from fastget.kernels.equations.votes import agreeing_votes
from fastget.kernels.expectation import expectation
from fastget.kernels.memory import renew_prior_, update_memory_
from fastget.kernels.objective import objective

__all__ = [
    "agreeing_votes",
    "expectation",
    "objective",
    "posterior",
    "rebalance",
    "renew_prior_",
    "scatter_update",
    "update_memory_",
]
