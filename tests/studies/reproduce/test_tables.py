"""The paper's tables as data: rows, tasks and numbers that go together, and plans of each."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from fastget.commands.main import main
from fastget.data.datasets import DATA_SETS
from fastget.studies.reproduce.recipe import PUBLISHED, PaperTable, read_published, read_table, table_names
from fastget.studies.reproduce.run import Reproduction, plan
from fastget.studies.reproduce.write import row_title, write
from tests.studies.reproduce.support import write_tree

JOBS = {  # a seed, with every method that fastget has
    "ablation": 5 * (4 + 1),
    "domainnet126-ssda": 8 * (7 + 7),
    "office-31-uda": (8 + 7 + 5) * 6,
    "office-home-imbalanced": 6 * (4 + 4),
    "office-home-pda": 8 * 12,
    "office-home-uda": (7 + 6) * 12,
    "sensitivity": 10 * 6,
    "visda2017-uda": 8,
}


# of paper_results.csv, the paper's tables as they were typed in and checked, by lines
PAPER_RESULTS = "2bead1f3f28ddffaae281947d65e64659ede9489417b8f745d9059b7ef254bc3"


def everything(table: PaperTable) -> Reproduction:
    tasks = list(dict.fromkeys(name for part in table.parts for name in part.tasks))
    return Reproduction(table=table, methods=table.methods, bases=table.bases, tasks=tasks, seeds=(0,))


def test_the_numbers_are_those_of_the_paper() -> None:
    assert hashlib.sha256(PUBLISHED.read_text(encoding="utf-8").encode()).hexdigest() == PAPER_RESULTS


def test_every_number_of_the_paper_has_its_place() -> None:
    places = [
        (row.group, row.label, column, part.reported(row, column), part)
        for name in table_names() if name != "visda2017-uda"  # whose numbers are the ablation's
        for table in [read_table(name)] for part in table.parts for row in table.rows for column in part.columns
    ]  # fmt: skip
    found = sorted((*place[:3], place[3], place[4].data) for place in places if place[3] is not None)
    lines = read_published()
    assert found == sorted((x["base"], x["method"], x["task"], x["accuracy"], x["data"]) for x in lines)
    assert len(lines) == 778
    for *_, reported, part in places:
        backbones = {x["backbone"] for x in lines if x["data"] == part.data}
        assert reported is None or backbones == {part.set["network.name"]}


@pytest.mark.parametrize("name", table_names())
def test_the_table_prints_what_the_paper_does(name: str, tmp_path: Path) -> None:
    """The Markdown table, parsed, against the CSV's lines."""
    table = read_table(name)
    write(everything(table), tmp_path, [])
    sections = re.split(r"^## ", (tmp_path / "table.md").read_text(), flags=re.MULTILINE)[1:]
    printed = []
    for part, section in zip(table.parts, sections, strict=False):
        head, _, *body = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
        assert len(head) == 1 + len(part.columns)
        for line in body:
            title, _, whose = line[0].rpartition(", ")
            row = next(row for row in table.rows if row_title(row) == title)
            if whose == "paper":
                cells = zip(part.columns, [*line[1:], *[""] * len(head)], strict=False)
                printed += [(part.data, row.group, row.label, c, float(x)) for c, x in cells if x.strip()]
    wanted = {"visda2017-uda": "ablation"}.get(name, name)
    labels = {row.label for row in table.rows}
    data = {part.data for part in table.parts}
    lines = [x for x in read_published() if x["table"] == wanted and x["method"] in labels and x["data"] in data]
    numbers = [(x["data"], x["base"], x["method"], x["task"], float(x["accuracy"])) for x in lines]
    assert sorted(printed) == sorted(numbers)
    assert bool(printed) == (name != "sensitivity")


@pytest.mark.parametrize("name", table_names())
def test_every_table_has_its_plan(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", name, "--plan", "--seeds", "0,1"]) == 0
    text = capsys.readouterr().out
    assert f"to run: {2 * JOBS[name]} jobs" in text
    assert "nothing was measured" in text
    assert not Path("runs").exists()
    jobs = plan(everything(read_table(name)), Path("o"))
    assert not [job.refused for job in jobs if job.refused]
    assert len({job.folder for job in jobs}) == JOBS[name]
    for job in jobs:
        assert {job.value("data.source"), job.value("data.target")} <= set(DATA_SETS[job.value("data.name")].domains)


def test_the_list_of_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(JOBS)
    assert "156 jobs a seed, 234 numbers to compare" in lines[5]


def test_settings_of_the_jobs() -> None:
    by_row = {job.row: job.settings for job in plan(everything(read_table("ablation")), Path("o"))}
    assert by_row["GeT without KL of f"]["get.kl_f"] == "false"
    assert "get.kl_g" not in by_row["GeT without KL of f"]
    paper = everything(read_table("office-31-uda"))
    paper = Reproduction(**{**vars(paper), "recipe": "paper", "given": {"network.name": "small", "get.tau": "0.3"}})
    for job in plan(paper, Path("o")):
        method = job.value("method.name")
        assert job.settings["network.name"] == "small"
        assert (job.settings.get("method.recipe"), job.settings.get("get.tau")) == (
            ("paper", "0.3") if method == "get" else (None, None)
        )
    text = Reproduction(**{**vars(paper), "recipe": "paper-text"})
    for job in plan(text, Path("o")):
        assert job.config is not None
        assert job.config.optim.bottleneck_lr_scale == 0.1
        assert job.settings.get("method.recipe") == ("paper" if job.value("method.name") == "get" else None)
    ssda = plan(everything(read_table("domainnet126-ssda")), Path("o"))
    assert {(job.setting, job.value("data.shots"), job.value("network.name")) for job in ssda} == {
        ("domainnet126, ssda-1", "1", "resnet34"), ("domainnet126, ssda-3", "3", "resnet34")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["office-home"], "no such table 'office-home' (did you mean 'office-home-"),
        (["office-31-uda"], "--root is missing"),
        (["office-31-uda", "--plan", "--methods", "mme"], "unknown method 'mme'"),
        (["office-31-uda", "--plan", "--tasks", "A-D"], "unknown task 'A-D' (did you mean 'A->D'?)"),
        (["office-31-uda", "--plan", "--methods", "mcc", "--bases", "mixmatch"], "no row of mcc on mixmatch"),
        (["ablation", "--plan", "--set", "get.mix=false"], "get.mix is what the rows of ablation differ in"),
        (["office-31-uda", "--plan", "--set", "data.setting=pda"], "use another TABLE"),
        (["office-31-uda", "--plan", "--methods", "mcc", "--set", "get.tau=1"], "get.tau is a setting of get"),
        (["office-31-uda", "--root", "."], "amazon"),
        (["ablation", "--root", "."], "looks for each in a folder of its name"),
    ],
)
def test_mistakes_are_told(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *args]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()


def test_images_are_counted_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path / "visda2017", "visda2017", per_class=6)  # 72 images a domain: two batches of 36, one epoch
    args = ["reproduce", "visda2017-uda", "--root", str(tmp_path), "--methods", "get", "--seeds", "0", "--plan"]
    assert main(args) == 0
    # a step of the warm-up and one of GeT, its start by both domains, and an evaluation after each step
    assert f"1 job, 2 steps, {3 * 36 + 3 * 72 + 2 * 72 + 2 * 72} image passes" in capsys.readouterr().out
