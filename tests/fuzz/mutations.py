"""Damaged copies of good bytes, the same ones in every run: a test that fails can be repeated by its seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def mutations(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` copies: a bit flipped, bytes changed, cut, dropped, doubled, zeroed or put in the place of others."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        made = bytearray(data)
        for _ in range(int(random.integers(1, 4))):
            _damage(made, random)
        yield bytes(made)


def _damage(made: bytearray, random: np.random.Generator) -> None:
    at = int(random.integers(0, max(1, len(made))))
    length = int(random.integers(1, 17))
    kind = int(random.integers(0, 7))
    if kind == 0 and made:
        made[at % len(made)] ^= 1 << int(random.integers(0, 8))
    elif kind == 1:
        made[at : at + length] = random.bytes(length)
    elif kind == 2:
        del made[at:]
    elif kind == 3:
        del made[at : at + length]
    elif kind == 4:
        made[at:at] = made[at : at + length]
    elif kind == 5:
        made[at : at + length] = bytes(min(length, len(made) - at))
    else:
        made[at : at + 4] = random.choice(
            [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00", b"\x80\0\0\0"]
        )
