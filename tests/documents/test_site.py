"""The site is built without a warning, loads nothing from elsewhere, and has no dead link."""

import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.browser import CHROMIUM, Browser
from tests.documents.blocks import ROOT

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src",
          "embed": "src", "object": "data", "image": "href", "use": "href", "form": "action"}  # fmt: skip
LINKED = ("stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest")


class Parts(HTMLParser):
    """What a page loads, where its links lead, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if LOADED.get(tag) in given:
            self.loads.append(given[LOADED[tag]])
        self.loads += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]
        if tag == "link" and set(given.get("rel", "").split()) & set(LINKED):
            self.loads.append(given.get("href", ""))
        elif tag == "a" and "href" in given:
            self.links.append(given["href"])


def outside(address: str) -> bool:
    """Whether another host would be asked."""
    return address.startswith("//") or urlparse(address).scheme in ("http", "https", "ws", "wss", "ftp")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Parts]:
    return {page: Parts(page.read_text(encoding="utf-8")) for page in sorted(site.rglob("*.html"))}


def test_every_page_is_there(pages: dict[Path, Parts], site: Path) -> None:
    built = {str(page.relative_to(site)) for page in pages}
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs").with_suffix(".html")) in built
    assert {"method.html", "contributing.html", "changelog.html"} <= built
    example = re.sub(r"<[^>]+>", "", (site / "add-a-method.html").read_text(encoding="utf-8"))
    assert "class SelfTraining(Method)" in example  # CONTRIBUTING.md's own


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Parts], site: Path) -> None:
    for page, parts in pages.items():
        assert parts.loads
        assert not [address for address in parts.loads if outside(address)], page
    sheets = [*site.rglob("*.css"), *site.rglob("*.svg")]
    assert sheets
    for sheet in sheets:
        text = sheet.read_text(encoding="utf-8")
        named = re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)|href=\"([^\"]+)", text)
        assert not [address for found in named for address in found if outside(address)], sheet


def test_no_link_is_dead(pages: dict[Path, Parts], site: Path) -> None:
    for page, parts in pages.items():
        for address in (*parts.links, *parts.loads):
            if outside(address) or urlparse(address).scheme or page.name == "404.html":
                continue
            path, _, anchor = address.partition("#")
            file = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            file = file / "index.html" if file.is_dir() else file
            assert file.is_file(), f"{page.relative_to(site)}: {address}"
            if anchor and file in pages:
                assert unquote(anchor) in pages[file].anchors, f"{page.relative_to(site)}: {address}"


def test_the_checks_can_fail() -> None:
    parts = Parts('<link rel="preconnect" href="https://a.b"><img srcset="//c.d/e 2x"><a href="x"></a><h2 id="y">')
    assert [outside(address) for address in parts.loads] == [True, True]
    assert (parts.links, parts.anchors) == (["x"], {"y"})
    assert not outside("images/logo.svg")
    assert not outside("data:image/png;base64,AA")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)")
def test_a_browser_asks_nobody(site: Path) -> None:
    with Browser() as browser:
        for name in ("index.html", "kernels.html"):
            browser.open(site / name, width=390, phone=True)
            assert browser.ask("document.documentElement.scrollWidth") <= 390, name  # nothing sticks out on a phone
            assert browser.ask("[...document.images].every(image => image.complete && image.naturalWidth > 0)"), name
        assert not [address for address in browser.requests if outside(address)]
        assert not browser.complaints
