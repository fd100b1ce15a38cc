"""Numbers that look random, made on the device and the same on any."""

from __future__ import annotations

from torch import Tensor


def scrambled(x: Tensor, start: int | Tensor) -> Tensor:
    """splitmix64 of start + x, for int64, which wraps: 64 bits that look random, no two alike."""
    x = (x + start) * -0x61C8864680B583EB
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * -0x40A7B892E31B1A47
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * -0x6B2FB644ECCEEE15
    return x ^ (x >> 31 & (1 << 33) - 1)
