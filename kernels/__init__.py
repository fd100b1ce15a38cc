"""GeT's fused Triton kernels, under the names and signatures of `fastget.reference`."""

if __name__ != "fastget.kernels":
    raise ImportError(
        f"this package is imported as 'fastget.kernels', not as {__name__!r}: "
        "write `from fastget import kernels` (a bare `kernels` is another project's name)"
    )

from fastget.kernels.cross_entropy import soft_cross_entropy
from fastget.kernels.expectation import Expectation, expectation
from fastget.kernels.labels import mixed_labels, shrink_prior, structure_loss
from fastget.kernels.memory import update_memory_
from fastget.kernels.objective import Objective, objective
from fastget.kernels.posterior import nearest_histogram, posterior
from fastget.kernels.prototypes import class_sums, update_prior, update_prototypes
from fastget.kernels.rebalance import rebalance

__all__ = [
    "Expectation",
    "Objective",
    "class_sums",
    "expectation",
    "mixed_labels",
    "nearest_histogram",
    "objective",
    "posterior",
    "rebalance",
    "shrink_prior",
    "soft_cross_entropy",
    "structure_loss",
    "update_memory_",
    "update_prior",
    "update_prototypes",
]
