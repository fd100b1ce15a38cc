"""`fastget sweep`: one field, two, three; what is chosen without labels; mistakes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from PIL import Image

from fastget.commands.main import main
from fastget.studies.sweep import point_folder
from tests.studies.support import stand_in


def test_one_field(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    started = stand_in(monkeypatch)
    args = ["sweep", "--set", "get.tau=0.2,0.1,0.4", "optim.lr=0.01", "--seeds", "0,1", "--jobs", "2", "--out", "s"]
    assert main(args) == 0
    assert len(started) == 6
    table = Path("s/table.md").read_text()
    lines = [line for line in table.splitlines() if line.startswith("| 0")]
    assert [line.split(" | ")[0] for line in lines] == ["| 0.1", "| 0.2", "| 0.4"]  # the best first
    assert lines[0].startswith("| 0.1 | **90.0 ± 0.7** |")
    assert lines[1].startswith("| 0.2 | 89.5 ± 0.7 † |")
    assert "an oracle" in table
    assert "- by entropy (the least, 0.1): get.tau=0.1: accuracy 90.0 ± 0.7 %" in table
    with Path("s/results.csv").open(newline="") as stream:
        first = next(csv.DictReader(stream))
    assert (first["get.tau"], first["seed"], first["status"]) == ("0.2", "0", "done")
    assert float(first["entropy"]) == pytest.approx(0.11)
    assert Path("s/get.tau=0.2/seed-1/summary.json").is_file()
    with Image.open("s/plot.png") as picture:
        assert picture.size[0] > 600
    assert main([*args[:2], "get.tau=0.2,0.1,0.4,0.8", *args[3:]]) == 0  # a value more
    assert len(started) == 8
    capsys.readouterr()
    assert main([*args[:2], "get.gamma_Q=0.2,0.4", *args[3:]]) == 2
    assert "holds another sweep" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["optim.lr=0.01,0.02"]], ids=["two", "three"])
def test_more_fields(monkeypatch: pytest.MonkeyPatch, more: list[str]) -> None:
    started = stand_in(monkeypatch)
    assert main(["sweep", "--set", "get.tau=0.1,0.2", "--set", "get.gamma_Q=0.2,0.5", *more, "--out", "s"]) == 0
    assert len(started) == (8 if more else 4)
    assert Path("s/plot.png").is_file()
    assert "| 0.1, 0.2" in Path("s/table.md").read_text()


def test_what_does_not_go_together_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    assert main(["sweep", "--set", "method.name=get,mme", "get.tau=0.1,0.2", "--out", "s"]) == 0
    table = Path("s/table.md").read_text()
    assert "| mme, 0.1 | refused |" in table
    assert "get.tau is a setting of get, and the method is mme" in table


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "get.tau=0.1"], "nothing to sweep"),
        ([], "nothing to sweep"),
        (["--set", "get.tau=0.1,0.10"], "the values must differ"),
        (["--set", "get.tau=0.1,x"], "get.tau must be a number, got 'x'"),
        (["--set", "get.tua=1,2"], "did you mean 'get.tau'"),
        (["--set", "train.seeds=0,1"], "use --seeds"),
        (
            ["--set", "mcc.temperature=1,2"],
            "every one of the 2 jobs is refused; the first: mcc.temperature is a setting",
        ),
        (["--method", "get", "--set", "method.name=get,mcc"], "method.name is given by its option and by --set"),
    ],
)
def test_mistakes_are_told(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *args, "--out", "s"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("s").exists()


def test_a_points_folder() -> None:
    assert point_folder({"get.tau": "0.1", "optim.lr": "1e-3"}) == "get.tau=0.1,optim.lr=1e-3"
    odd, other = point_folder({"network.weights": "a/b"}), point_folder({"network.weights": "a b"})
    assert odd.startswith("network.weights=a_b-")
    assert odd != other
