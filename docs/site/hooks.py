"""What the site adds to docs/: pages that lie elsewhere in the repository, and links that lead to them.

The Markdown is written for whoever reads it in the repository. So a link to a file outside of docs/ is turned here into
one to its page, and `<!-- include: FILE#heading -->` becomes that section of that file, which keeps one source of it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {  # file of the repository -> page of the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "fastget/METHOD.md": "method.md",
}
LINK = re.compile(r"\[([^][]*)\]\(([^)\s#]+)([^)\s]*)\)")
BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r"<!-- include: (\S+)#(\S+) -->")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages that lie elsewhere. README's place is the site's own first page."""
    for source, page in PAGES.items():
        if page != "index.md":
            files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Sections included, links led to the site's pages, and blocks told apart as GitHub tells them."""
    sources = {page: source for source, page in PAGES.items() if page != "index.md"}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    markdown = INCLUDE.sub(lambda found: lead(section(found[1], found[2]), found[1], page.file.src_uri), markdown)
    markdown = apart(lead(markdown, source, page.file.src_uri))
    markdown = BLOCK.sub(lambda found: re.sub(r"^```\n", "```bash\n", found[0]), markdown)
    return between(CODE, lambda text: re.sub(r"(?<=\d)\*(?=\))", r"\\*", text), markdown)  # (4*) begins no emphasis


def on_post_build(config: MkDocsConfig) -> None:
    """The search's index as a script too: a page opened from a disk may not read a file in another way."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")


def section(name: str, anchor: str) -> str:
    """The text under one heading of a file of the repository, to the next heading of its level or above."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    heads = [(i, len(line) - len(line.lstrip("#")), line.lstrip("# ")) for i, line in outside_fences(lines)
             if line.startswith("#")]  # fmt: skip
    for n, (start, level, title) in enumerate(heads):
        if re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) == anchor:
            end = next((i for i, other, _ in heads[n + 1 :] if other <= level), len(lines))
            return "\n".join(lines[start + 1 : end]).strip()
    raise PluginError(f"{name} has no heading #{anchor}")


def lead(markdown: str, source: str, page: str) -> str:
    """Relative links of a file of the repository, as links of a page of the site."""

    def turned(found: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", found[2]):
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        place = PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
        if place is None and (ROOT / target).exists():
            return found[1]  # a file of the repository without a page: its name alone
        if place is None:
            raise PluginError(f"{source} links to {target}, which is not there")
        return f"[{found[1]}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{found[3]})"

    return between(BLOCK, lambda text: LINK.sub(turned, text), markdown)


def between(kept: re.Pattern[str], change: Callable[[str], str], markdown: str) -> str:
    """The text with all changed but what `kept` finds."""
    return "".join(part if n % 2 else change(part) for n, part in enumerate(kept.split(markdown)))


def outside_fences(lines: list[str]) -> list[tuple[int, str]]:
    """The lines that no fenced block holds, with their numbers."""
    held, found = False, []
    for i, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            held = not held
        elif not held:
            found.append((i, line))
    return found


def apart(markdown: str) -> str:
    """A blank line before a list or table that follows a paragraph: GitHub needs none, Python-Markdown does."""
    lines = markdown.splitlines()
    begins = re.compile(r"(- |\d+\. |\|)")
    for i, line in reversed(outside_fences(lines)):
        before = lines[i - 1] if i else ""
        if begins.match(line) and before.strip() and not begins.match(before) and not before.startswith((" ", "#")):
            lines.insert(i, "")
    return "\n".join(lines)
