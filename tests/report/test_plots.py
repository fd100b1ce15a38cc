"""Every figure as PNG and as PDF."""

from pathlib import Path

import numpy as np
from PIL import Image

from fastget.commands.main import main
from fastget.report.page import make_report
from fastget.report.plots import draw_all
from fastget.report.read import find_runs, group
from tests.report.support import write_run
from tests.report.test_page import OWN, SHARED


def test_every_figure_of_a_digits_run(digits_run: Path) -> None:
    options = ["--projection", "pca", "--out", "page.html", "--figures", "figures"]
    assert main(["report", str(digits_run), *options]) == 0
    assert {file.name for file in Path("figures").iterdir()} == {
        f"{name}.{kind}" for name in SHARED + OWN for kind in ("png", "pdf")
    }
    for name in SHARED + OWN:
        pixels = np.asarray(Image.open(f"figures/{name}.png").convert("L"))
        assert len(np.unique(pixels)) > 10, name
        assert Path(f"figures/{name}.pdf").read_bytes().startswith(b"%PDF")


def test_several_runs_have_figures_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", method__name="mcc", labelled=False)
    report = make_report(group(find_runs([tmp_path / "a", tmp_path / "b"])))
    assert draw_all(report, tmp_path / "figures") == 4 + 3 + 2
    assert not (tmp_path / "figures" / "confusion-mcc.png").exists()
    assert (tmp_path / "figures" / "classes-mcc.png").is_file()
    assert (tmp_path / "figures" / "confusion-get.png").is_file()
