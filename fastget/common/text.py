"""Words for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


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


def printable(name: str, most: int = 40) -> str:
    """A name from a file or folder for a terminal or a picture: no control characters, nothing that is not Unicode, not
    too long."""
    clean = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


def safe_cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets an apostrophe before it."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
