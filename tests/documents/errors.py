"""docs/errors.md, made of what fastget really says to each mistake of tests/commands/mistakes.py:

python -m tests.documents.errors        # writes the page; tests/commands/test_mistakes.py keeps it in step
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import tempfile
import textwrap
from pathlib import Path

from tests.commands.mistakes import MISTAKES, TINY, Mistake, answer, in_a_process, prepare
from tests.documents.blocks import ROOT

PAGE = ROOT / "docs" / "errors.md"
BEGIN = "<!-- mistakes: made by python -m tests.documents.errors -->"
SECTIONS = {  # the first mistake of each
    "no command": "Words",
    "a misspelt field": "Settings",
    "no such file": "A file of settings",
    "an unknown data set": "Images",
    "an unknown network": "Networks and weights",
    "a folder that holds a run": "Runs",
    "no such run": "After training",
    "a sweep without values": "Studies and data",
    "an empty name for the run's folder": "And more",
}
ENTRY = re.compile(r"^### ([^\n]+)\n\n`([^\n]+)`\n\n```text\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


def typed(mistake: Mistake) -> str:
    """The command without the settings that only make it quick."""
    words = mistake.command.replace(f"--set {TINY} --", "--").replace(f"--set {TINY} ", "--set ")
    words = words.replace(f" --set {TINY}", "")
    return f"fastget {words}".strip()


def told(said: str) -> str:
    """What was said, on one line: without usage and place, and with nothing of this machine."""
    line = " ".join(said.replace(f"{Path.cwd()}/", "").split())
    _, mark, words = line.partition("error: " if "usage: " in line else "fastget: ")
    line = words if mark else line
    line = re.sub(r"sha256 [0-9a-f]+", "sha256 ...", line)
    line = re.sub(
        r"by `.*?` \(process \d+ on \S+, since [^)]+\)", "by `fastget train` (process ... on ..., since ...)", line
    )
    return re.sub(r"\(choose from [^)]*\)", lambda found: found[0].replace("'", ""), line)  # Python 3.11 quotes them


def page_part() -> str:
    """All mistakes, in the current folder that `prepare` has filled."""
    parts = [BEGIN]
    for mistake in MISTAKES:
        if mistake.what in SECTIONS:
            parts.append(f"## {SECTIONS[mistake.what]}")
        _, said = answer(mistake) if mistake.cheap else in_a_process(mistake)
        words = "\n".join(textwrap.wrap(told(said), 110, break_long_words=False, break_on_hyphens=False))
        parts.append(f"### {mistake.what[0].upper()}{mistake.what[1:]}\n\n`{typed(mistake)}`\n\n```text\n{words}\n```")
    return "\n\n".join(parts) + "\n"


def stored() -> dict[str, tuple[str, str]]:
    """The page's entries: mistake -> (command, answer on one line)."""
    text = PAGE.read_text(encoding="utf-8")
    return {what: (command, " ".join(words.split())) for what, command, words in ENTRY.findall(text)}


def differs(mistake: Mistake, said: str) -> str | None:
    """What is wrong with the page's entry; None where it agrees. Words of Python and of other packages may differ with
    their versions: most of a message has to be the same, and what a person needs of it all."""
    command, words = stored().get(mistake.what[0].upper() + mistake.what[1:], ("", ""))
    if command != typed(mistake):
        return f"docs/errors.md lacks `{typed(mistake)}`: run python -m tests.documents.errors"
    alike = difflib.SequenceMatcher(None, words.split(), told(said).split()).ratio()
    if mistake.says not in words or alike < 0.7:
        return f"docs/errors.md has another answer: run python -m tests.documents.errors\n{words}\n{told(said)}"
    return None


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mistakes-") as folder:
        prepare(Path(folder))
        os.chdir(folder)
        part = page_part()
        os.chdir("/")
    head = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
    PAGE.write_text(head + part, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
