"""Words for messages."""

from __future__ import annotations

from collections.abc import Sequence


def and_more(items: Sequence[object], most: int = 5) -> str:
    """The first few of many: `a, b, c and 4 more`."""
    head = ", ".join(map(str, items[:most]))
    return head if len(items) <= most else f"{head} and {len(items) - most:,} more"
