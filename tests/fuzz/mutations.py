"""Damaged copies of good bytes, the same ones in every run: a test that fails can be repeated by its seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

ODD = (0, 1, 0x10, 0x7F, 0x80, 0xFF)
LENGTHS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00", b"\x80\0\0\0")  # that a header may tell of


def mutations(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` copies: bits flipped, bytes replaced, parts cut out, doubled, zeroed or made others, the end cut off."""
    chance = random.Random(seed)
    for _ in range(count):
        made = bytearray(content)
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            _damage(made, chance)
            made = made or bytearray(b"\0")
        yield bytes(made)


def _damage(made: bytearray, chance: random.Random) -> None:
    at, length, kind = chance.randrange(len(made)), chance.choice((1, 2, 4, 16, 64)), chance.randrange(8)
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
    elif kind == 5:
        made[at : at + length] = bytes(min(length, len(made) - at))
    elif kind == 6:
        made[at : at + 4] = chance.choice(LENGTHS)
    else:
        del made[at:]


def flips(content: bytes, places: Iterable[int]) -> Iterator[bytes]:
    """Each bit of these bytes, alone."""
    for at in places:
        for bit in range(8):
            yield content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]
