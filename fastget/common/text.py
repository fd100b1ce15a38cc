"""Words for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def and_more(items: Sequence[object], most: int = 5) -> str:
    """The first few of many: `a, b, c and 4 more`."""
    head = ", ".join(map(str, items[:most]))
    return head if len(items) <= most else f"{head} and {len(items) - most:,} more"


def close_matches(word: str, words: Iterable[str], most: int = 1, cutoff: float = 0.4) -> list[str]:
    """What someone who wrote `word` may have meant, the likeliest first."""
    return difflib.get_close_matches(word, list(words), n=most, cutoff=cutoff)


def nearest(word: str, words: Iterable[str], cutoff: float = 0.4) -> str:
    """` (did you mean 'x'?)`, or nothing if none of the words is like it."""
    close = close_matches(word, words, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""
