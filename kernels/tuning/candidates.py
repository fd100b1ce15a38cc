"""The configurations that `fastget tune` tries: of the two kernels with matrix products, which are most of a step."""

from __future__ import annotations

from fastget.kernels import configs
from fastget.kernels.configs import Config, Gradient, Tile

# BLOCK_B, BLOCK_C, BLOCK_D, num_warps, num_stages
LOGITS = (
    (16, 32, 32, 4, 2), (16, 32, 64, 4, 4), (32, 32, 64, 4, 3), (32, 32, 64, 4, 4), (32, 64, 32, 8, 3),
    (64, 32, 64, 4, 3), (64, 32, 64, 4, 4), (64, 64, 32, 8, 3), (128, 32, 32, 8, 4), (128, 64, 32, 8, 3),
)  # fmt: skip
# BLOCK_B, BLOCK_C, BLOCK_D, BLOCK_K, num_warps, num_stages
BACKWARD = (
    (32, 32, 64, 32, 4, 3), (32, 32, 64, 64, 4, 3), (32, 32, 64, 64, 4, 4), (64, 64, 64, 32, 8, 3),
    (64, 64, 128, 32, 8, 3), (128, 128, 64, 32, 8, 3), (128, 128, 128, 32, 8, 3), (128, 128, 128, 32, 8, 4),
)  # fmt: skip
KERNELS = ("logits", "backward")


def candidates(kernel: str, B: int, C: int, D: int, precision: str) -> list[Config]:
    """What is tried for one kernel and shape; first what the rules choose. Full float32 has the rules alone: its
    products are not the matrix cores', and larger tiles spill."""
    with configs.choosing(table=None):
        rule: Config = (configs.logits if kernel == "logits" else configs.backward)(B, C, D, precision)
    found: list[Config] = [rule]
    if precision == "ieee":
        return found
    if kernel == "logits":
        found += [
            Tile(BLOCK_B=b, BLOCK_C=c, BLOCK_D=d, PRECISION=precision, num_warps=w, num_stages=s)
            for b, c, d, w, s in LOGITS
        ]
    else:
        found += [
            Gradient(BLOCK_B=b, BLOCK_C=c, BLOCK_D=d, BLOCK_K=k, PRECISION=precision, num_warps=w, num_stages=s)
            for b, c, d, k, w, s in BACKWARD
        ]
    return [config for i, config in enumerate(found) if config not in found[:i]]
