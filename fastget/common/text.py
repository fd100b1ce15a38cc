"""Words for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


def and_more(items: Sequence[object], most: int = 5) -> str:
    """The first few of many: `a, b, c and 4 more`."""
    head = ", ".join(map(str, items[:most]))
    return head if len(items) <= most else f"{head} and {len(items) - most:,} more"


def counted(number: int, what: str) -> str:
    """`1 run`, `3 runs`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def first_line(error: BaseException) -> str:
    """What an error says, without the advice that its library adds; its kind where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


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


# --- texts that others wrote: names of files and classes -----------------------------------------


def escaped(text: str) -> str:
    """The text as it can be shown and written anywhere: control characters, and bytes that are no UTF-8, as `\\x1b`.

    A terminal would obey an escape sequence in a file's name, and a file of results would not take a surrogate.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else _as_code(char) for char in text)


def _as_code(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte that is no UTF-8, as Python keeps it
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets an apostrophe before it; what is no text stays."""
    if not isinstance(value, str) or not value.lstrip("'").startswith(_FORMULA) or _is_number(value):
        return value
    return f"'{value}"


def from_csv_cell(text: str) -> str:
    """The text that `csv_cell` was given."""
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(_FORMULA) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
