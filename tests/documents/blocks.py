"""Every fenced block of README.md, CONTRIBUTING.md and docs/, and what is to be done with it.

A block is run by test_blocks.py, or the line right before it says why not:

    <!-- not run: needs four GPUs -->                   none of it
    <!-- not run (git, make): needs the network -->     not the lines that begin with these words
    <!-- example: name.py -->                           a file of that name, which a later command uses
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = ("", "bash", "console")
FENCE = re.compile(r"^(?P<before>[^\n]*)\n```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run(?: \((?P<words>[^)]+)\))?: (?P<reason>\S.*) -->")
EXAMPLE = re.compile(r"<!-- example: (\S+) -->")
RUNNERS = ("fastget", "torchrun")  # what the tests know to run


@dataclass(frozen=True)
class Block:
    """One fenced block, and the line before it."""

    page: str  # its path in the repository
    line: int
    language: str
    text: str
    before: str

    @property
    def name(self) -> str:
        return f"{self.page}, line {self.line}"

    @property
    def reason(self) -> str | None:
        """Why none of it is run."""
        found = NOT_RUN.fullmatch(self.before.strip())
        return found["reason"] if found and not found["words"] else None

    @property
    def left_out(self) -> tuple[str, ...]:
        """First words of the lines that are not run."""
        found = NOT_RUN.fullmatch(self.before.strip())
        return tuple(word.strip() for word in found["words"].split(",")) if found and found["words"] else ()

    @property
    def file(self) -> str | None:
        found = EXAMPLE.fullmatch(self.before.strip())
        return found[1] if found else None

    @property
    def commands(self) -> list[list[str]]:
        """A shell block's lines as words, without comments; one that ends in a backslash goes on in the next."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.language in SHELL else []
        return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def blocks_of(text: str, page: str) -> list[Block]:
    """The fenced blocks of a page's text."""
    text = "\n" + text
    return [
        Block(page, text.count("\n", 0, found.start("language")), found["language"], found["text"], found["before"])
        for found in FENCE.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))]


def wrong(block: Block) -> str | None:
    """Why a block is neither run nor excused; None if it is one of them."""
    if "not run" in block.before and not NOT_RUN.fullmatch(block.before.strip()):
        return f"{block.name}: `{block.before}` is not of the form <!-- not run: reason -->"
    if block.reason or block.language in ("python", "text"):
        return None
    if block.language not in SHELL:
        return f"{block.name}: nobody runs a block of {block.language!r}; say why it is not run"
    first = {words[0] for words in block.commands}
    unknown = first - {*RUNNERS, *block.left_out}
    if unknown:
        return (
            f"{block.name}: nobody runs {', '.join(sorted(unknown))}; say before the block why: <!-- not run: ... -->"
        )
    unused = set(block.left_out) - first
    return f"{block.name}: no line begins with {', '.join(sorted(unused))}" if unused else None


def fastget_words(words: list[str]) -> list[str] | None:
    """The arguments of `fastget` in a command, also under torchrun; None if it is another program's."""
    if words[0] == "fastget":
        return words[1:]
    if words[0] == "torchrun" and "fastget" in words:  # torchrun ... -m fastget train ...
        return words[words.index("fastget") + 1 :]
    return None
