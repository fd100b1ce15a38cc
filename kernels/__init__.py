"""GeT's fused Triton kernels, under the names and signatures of `fastget.reference`."""

if __name__ != "fastget.kernels":
    raise ImportError(
        f"this package is imported as 'fastget.kernels', not as {__name__!r}: "
        "write `from fastget import kernels` (a bare `kernels` is another project's name)"
    )

from fastget.kernels.expectation import Expectation, expectation  # noqa: E402  (the name is checked first)
from fastget.kernels.memory import class_sums, update_memory_, update_prior, update_prototypes  # noqa: E402
from fastget.kernels.objective import Objective, objective  # noqa: E402
from fastget.kernels.posterior import nearest_histogram, posterior, soft_cross_entropy  # noqa: E402
from fastget.kernels.rebalance import mixed_labels, rebalance, shrink_prior, structure_loss  # noqa: E402

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
