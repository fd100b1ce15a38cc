"""The page: one file, whole in itself, that says what can be said of any run."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import fastget
from fastget.commands.main import main
from fastget.data.digits import digits_root
from fastget.report.page import make_report, render
from fastget.report.read import find_runs, group
from tests.browser import CHROMIUM, Browser
from tests.report.support import write_features, write_labels, write_run
from tests.support import TINY

OLD = Path(__file__).resolve().parents[1] / "data" / "run-0.1.0"
SHARED = ["convergence", "losses", "throughput", "time"]
OWN = ["classes", "confusion", "confidence", "prior", "pseudo", "embedding", "images"]


def data_of(page: str) -> dict[str, Any]:
    """What the page's script reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def unlabelled_run(out: Path) -> Path:
    """A short run on digits whose target has no labels."""
    root = digits_root()
    lines = (root / "handwritten.txt").read_text().splitlines()[::20]
    (out.parent / "target.txt").write_text("\n".join(line.rpartition(" ")[0] for line in lines) + "\n")
    settings = TINY | {"data.name": "lists", "data.root": str(root), "data.source": str(root / "fonts.txt")}
    settings |= {"data.target": str(out.parent / "target.txt"), "network.name": "small", "network.weights": "none"}
    settings |= {"data.resize": 32, "data.crop": 28, "data.flip": False, "train.out": str(out)}
    return fastget.train(settings, quiet=True).folder


def test_a_page_of_a_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_labels(folder)
    write_features(folder, "before", "after")
    assert main(["report", str(folder), "--projection", "pca"]) == 0
    page = (folder / "report.html").read_text()
    data = data_of(page)
    assert [figure["id"] for figure in data["figures"]] == SHARED
    assert [figure["id"] for figure in data["runs"][0]["figures"]] == OWN
    assert {figure["id"] for figure in data["runs"][0]["figures"] if figure["why"]} == {"images"}  # they are gone
    assert "66.7 %" in page  # accuracy
    assert "+41.7" in page  # its gain over 25 %
    for figure in SHARED + OWN:
        assert f'<figure id="{figure}"' in page
    assert "photo → sketch" in page


def test_what_a_run_names_cannot_break_the_page(tmp_path: Path) -> None:
    """A class of it is called </script><b>cow; its target, as a title, is no better."""
    folder = write_run(tmp_path / "run", data__target="<img src=x onerror=alert(1)>")
    page = render(make_report(group(find_runs([folder]))))
    assert page.count("</script>") == 2
    assert "<b>cow" not in page
    assert "<img src=x" not in page
    assert data_of(page)["runs"][0]["figures"][1]["data"]["classes"][2] == "</script><b>cow"


def test_nothing_is_fetched(tmp_path: Path) -> None:
    page = render(make_report(group(find_runs([write_run(tmp_path / "run")]))))
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)", page)
    assert set(re.findall(r"https?://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert "default-src 'none'" in page


def test_several_runs(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "get" / f"seed-{seed}", seed=seed, accuracy=(0.5, 0.6 + 0.1 * seed))
    write_run(tmp_path / "mcc", method__name="mcc", finished=False)
    assert main(["report", str(tmp_path / "get"), str(tmp_path / "mcc"), "--closer", "1"]) == 0
    page = Path("report.html").read_text()
    assert "65.0 ± 7.1 %" in page
    assert "not ended" in page
    assert "1 of 2 groups; 1 are left out" in page
    assert [run["name"] for run in data_of(page)["runs"]] == ["get, seed 0"]


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", finished=False)
    for name in ("metrics.jsonl", "timing.jsonl"):
        (folder / name).write_text("")
    data = data_of(render(make_report(group(find_runs([folder])))))
    assert all(figure["why"] for figure in [*data["figures"], *data["runs"][0]["figures"]])


def test_a_run_of_0_1_0(tmp_path: Path) -> None:
    assert main(["report", str(OLD), "--out", "old.html"]) == 0
    figures = data_of(Path("old.html").read_text())["runs"][0]["figures"]
    assert {figure["id"] for figure in figures if figure["why"]} == {"prior", "pseudo", "embedding"}
    cards = next(figure for figure in figures if figure["id"] == "images")["data"]["kinds"][0]["images"]
    assert all(card["src"].startswith("data:image/webp;base64,") for card in cards)


def test_a_target_without_labels(tmp_path: Path) -> None:
    folder = unlabelled_run(tmp_path / "run")
    assert main(["report", str(folder), "--projection", "pca"]) == 0
    page = (folder / "report.html").read_text()
    data = data_of(page)
    own = {figure["id"]: figure for figure in data["runs"][0]["figures"]}
    assert {name for name, figure in own.items() if figure["why"]} == {"confusion"}
    assert "no labels" in own["confusion"]["why"]
    assert [kind["name"] for kind in own["images"]["data"]["kinds"]] == ["The least certain"]
    assert [choice["name"] for choice in own["pseudo"]["data"]["choices"]] == ["coverage (confidence ≥ 0.9)"]
    assert "accuracy" not in {choice["name"] for choice in data["figures"][0]["data"]["choices"]}
    assert "this page shows what can be said without them" in page
    assert not own["embedding"]["data"]["labelled"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["gone"], "no folder gone"),
        (["run", "--out", "page.pdf"], "ends in .html, got page.pdf"),
        (["run", "--out", "nowhere/page.html"], "cannot write nowhere/page.html"),
        (["run", "--closer", "-1"], "--closer must be at least 0"),
        (["run", "--figures", "run/config.yaml"], "is a file: name a folder"),
    ],
)
def test_bad_input(args: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run")
    assert main(["report", *args]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


# --- a real browser ------------------------------------------------------------------------------


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)")
def test_the_report_of_a_digits_run_in_a_browser(digits_run: Path, tmp_path: Path) -> None:
    """Every figure is drawn, at a desk's and a phone's width, dark and light, without a complaint or a request."""
    run = Path(shutil.copytree(digits_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))
    assert main(["report", str(run), "--projection", "pca"]) == 0
    with Browser() as browser:
        for width, dark in ((1280, False), (390, True)):
            browser.open(run / "report.html", width=width, dark=dark, phone=width < 500)
            assert browser.ask("document.documentElement.dataset.ready") == "yes"
            assert browser.ask("document.documentElement.dataset.theme") == ("dark" if dark else "light")
            for figure in SHARED + OWN:
                marks = ", ".join(f"#{figure} .plot {mark}" for mark in ("svg path", "svg rect", "canvas", "td", "img"))
                assert browser.ask(f"document.querySelectorAll('{marks}').length") > 0, figure
                assert browser.ask(f"document.getElementById('{figure}').dataset.drawn") == "yes", figure
            assert browser.ask("document.documentElement.scrollWidth") == width  # nothing sticks out
            blank = "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
            assert min(browser.ask(f"[...document.querySelectorAll('canvas')].map({blank})")) > 5
        # what is interactive answers
        browser.ask("document.querySelector('#classes th[data-key=accuracy]').click()")
        lowest = browser.ask(
            "[...document.querySelectorAll('#classes tbody tr')].map(r => parseFloat(r.cells[2].textContent))"
        )
        assert lowest == sorted(lowest)
        before = browser.ask("document.querySelector('#losses .plot path').getAttribute('d')")
        browser.ask("document.querySelectorAll('#losses .controls button')[1].click()")
        assert browser.ask("document.querySelector('#losses .plot path').getAttribute('d')") != before
        browser.ask("document.getElementById('theme').click()")
        assert browser.ask("document.documentElement.dataset.theme") == "light"
        pages = [url for url in browser.requests if not url.startswith("data:")]
        assert pages == [(run / "report.html").resolve().as_uri()] * 2
        assert browser.complaints == []


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)")
def test_the_browser_sees_errors_and_requests(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("oh"); gone();</script>')
    with Browser() as browser:
        browser.open(page)
        assert "http://127.0.0.1:9/x.png" in browser.requests
        assert any('"oh"' in text for text in browser.complaints)
        assert any("gone is not defined" in text for text in browser.complaints)
