"""GeT's fused Triton kernels, under the names and signatures of `fastget.reference`.

A step is six launches, each waiting for sums that the one before it made:

1. logits.py      E: logits under mu, mu_g and mu_f from one read of the features, norms, partials of softmax and argmax
2. statistics.py  y_M, and the packed sums that many ranks add up: column sums, prior estimate, bad rows, class sums
3. objective.py   C: Q, labels, the rows' losses
4. objective.py   the losses and metrics, added up
5. backward.py    gradients to features, mu_g and mu_f
6. memory.py      prototypes and prior

In bfloat16, and only where sizes are large (configs.copied), copied.py stands in for logits.py with two launches, the
first of which copies the prototypes to bfloat16: seven in all.

Every sum has one owner that adds in a fixed order: no atomics, the same bits each time. Around a launch stand tile.py
(device functions that several share), configs.py (block sizes), checks.py (what is refused), wrap.py (eager and
compiled operators) and launch.py. equations/ holds the equations by themselves, made of the same device functions;
audit/ finds what the kernels cost.
"""

if __name__ != "fastget.kernels":
    raise ImportError(
        f"this package is imported as 'fastget.kernels', not as {__name__!r}: "
        "write `from fastget import kernels` (a bare `kernels` is another project's name)"
    )

from fastget.kernels.equations.cross_entropy import soft_cross_entropy
from fastget.kernels.equations.labels import cap_prior, mixed_labels, rebalance_exponent, shrink_prior, structure_loss
from fastget.kernels.equations.nearest import agreeing_votes, nearest_histogram
from fastget.kernels.equations.posterior import posterior
from fastget.kernels.equations.prototypes import class_sums, update_prior, update_prototypes
from fastget.kernels.equations.rebalance import rebalance
from fastget.kernels.expectation import Expectation, expectation
from fastget.kernels.memory import update_memory_
from fastget.kernels.objective import Objective, objective

__all__ = [
    "Expectation",
    "Objective",
    "agreeing_votes",
    "cap_prior",
    "class_sums",
    "expectation",
    "mixed_labels",
    "nearest_histogram",
    "objective",
    "posterior",
    "rebalance",
    "rebalance_exponent",
    "shrink_prior",
    "soft_cross_entropy",
    "structure_loss",
    "update_memory_",
    "update_prior",
    "update_prototypes",
]
