"""The command line's help, as wide as the terminal, and its mistakes, with what was likely meant. No torch here."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any, NoReturn

from fastget.common.text import nearest

LIKE = 0.6  # how like an option must be to be offered


class Parser(argparse.ArgumentParser):
    """argparse's, with help that fits, and suggestions."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"formatter_class": Fitting, **given})

    def error(self, message: str) -> NoReturn:
        super().error(message + self._meant(message))

    def _meant(self, message: str) -> str:
        """What someone who was misunderstood may have meant."""
        if found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            return nearest(found[1], re.findall(r"[\w-]+", found[2]), LIKE)
        if not message.startswith("unrecognized arguments: "):
            return ""
        words = [word.partition("=")[0] for word in message.partition(": ")[2].split() if word.startswith("-")]
        known = list(_options(self))
        hints = [
            f" (a field is given by --set {word.lstrip('-')}=VALUE)" if "." in word else nearest(word, known, LIKE)
            for word in words
        ]
        return "".join(hints)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The options of a parser and of its commands."""
    for action in parser._actions:  # argparse has no public way to them
        yield from (option for option in action.option_strings if option.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options(command)


class Fitting(argparse.HelpFormatter):
    """Paragraphs are filled; indented lines stay lines of their own, and are cut where they are too long."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        for command in self._iter_indented_subactions(action):  # whose indent argparse leaves out of the first column
            length = len(self._format_action_invocation(command)) + self._current_indent
            self._action_max_length = max(self._action_max_length, length)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        room = width - len(indent)
        return "\n".join(f"{indent}{line}".rstrip() for line in fitted(text, room))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrap(" ".join(text.split()), width)


def width() -> int:
    """Of a line of help, as argparse has it."""
    return shutil.get_terminal_size().columns - 2


def fitted(text: str, room: int) -> list[str]:
    """The lines of a text within `room` columns."""
    lines: list[str] = []
    prose: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip() and not line.startswith(" "):
            prose.append(line)
            continue
        if prose:
            lines += _wrap(" ".join(prose), room)
        prose = []
        lines += _fit(line.rstrip(), room)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def entry(head: str, text: str, column: int, room: int) -> list[str]:
    """`head`, and its meaning from `column` on: beside it, or below where the head is too long."""
    lines = _wrap(text, room - column, " " * column)
    if len(head) + 1 < column:
        lines[0] = head.ljust(column) + lines[0].strip()
        return lines
    return [head, *lines]


def _fit(line: str, room: int) -> list[str]:
    """One line, which is indented: a command goes on after a backslash, a list's entry below its own words."""
    if len(line) <= room:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    if line.strip().startswith(("fastget ", "torchrun ", "python -m ")):
        command, _, comment = line.partition("  #")
        about = _wrap(f"# {comment.strip()}", room - len(indent), indent) if comment else []
        parts = _wrap(command.strip(), room - len(indent) - 6)
        ends = [" \\"] * (len(parts) - 1) + [""]
        starts = [indent] + [f"{indent}    "] * (len(parts) - 1)
        return [*about, *map("".join, zip(starts, parts, ends, strict=True))]
    name = re.match(r"\s*\S.*?\s{2,}(?=\S)", line)
    if name and len(name[0]) < room // 2:
        return entry(name[0].rstrip(), line[len(name[0]) :], len(name[0]), room)
    return _wrap(line.strip(), room - len(indent), indent)


def _wrap(text: str, room: int, indent: str = "") -> list[str]:
    """Words are never cut: names of files and options are copied from help."""
    lines = textwrap.wrap(text, max(20, room), break_long_words=False, break_on_hyphens=False)
    return [indent + line for line in lines] or [""]
