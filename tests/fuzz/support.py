"""Damage by chance, the same in every run of the tests."""

from __future__ import annotations

import random
from collections.abc import Iterator

ODD = (0, 1, 0x10, 0x7F, 0x80, 0xFF)


def mutations(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Bits flipped, bytes replaced, parts cut out, doubled or moved, the end cut off."""
    chance = random.Random(seed)
    for _ in range(count):
        made = bytearray(content)
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            at, length = chance.randrange(len(made)), chance.choice((1, 2, 4, 16, 64))
            kind = chance.randrange(6)
            if kind == 0:
                made[at] ^= 1 << chance.randrange(8)
            elif kind == 1:
                made[at] = chance.choice(ODD)
            elif kind == 2:
                del made[at : at + length]
            elif kind == 3:
                made[at:at] = made[at : at + length]
            elif kind == 4:
                made[at : at + length] = chance.randbytes(length)
            else:
                del made[at:]
            made = made or bytearray(b"\0")
        yield bytes(made)


def flips(content: bytes, places: Iterator[int]) -> Iterator[bytes]:
    """Each bit of these bytes, alone."""
    for at in places:
        for bit in range(8):
            yield content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]
