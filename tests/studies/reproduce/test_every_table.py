"""Every table of the paper from end to end: trees with the data sets' own names, a small network, two steps."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fastget.archive.statistics import FINAL, ORACLE
from fastget.commands.main import main
from fastget.studies.reproduce.recipe import PaperTable, read_table, table_names
from fastget.studies.reproduce.write import row_title
from tests.studies.reproduce.support import SMALL, in_this_process, write_tree

PER_CLASS = {"domainnet126": 4}  # as a target three of them are shots
CHEAP = {  # what CI runs of each: one task and one or two methods, on every base model
    "ablation": ("get", "mean-class"),
    "domainnet126-ssda": ("mme,get", "C->S"),
    "office-31-uda": ("get", "A->D"),
    "office-home-imbalanced": ("get", "A->C"),
    "office-home-pda": ("get", "A->C"),
    "office-home-uda": ("get", "A->C"),
    "sensitivity": ("get", "D->W"),
    "visda2017-uda": ("bnm", "mean-class"),
}
Tree = Callable[[str], Path]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A folder that holds data sets, each made when it is first asked for."""
    root = tmp_path_factory.mktemp("data")

    def of(data: str) -> Path:
        if not (root / data).is_dir():
            write_tree(root / data, data, PER_CLASS.get(data, 2))
        return root

    return of


def run(table: PaperTable, tree: Tree, *more: str) -> None:
    roots = {tree(data) for data in table.data}
    root = roots.pop()
    words = ["reproduce", table.name, "--root", str(root), "--seeds", "0", "--gpus", "1", "--out", "r", *more]
    assert main([*words, "--set", *SMALL]) == 0


def assert_written(table: PaperTable, printed: str, tasks: set[str], ran: set[str]) -> None:
    """Every row of the paper's in what is printed and in each file; figures where they were asked for."""
    page, tex = Path("r/table.md").read_text(), Path("r/table.tex").read_text()
    for row in table.rows:
        assert row_title(row) in printed
        if row.method in ran or any(part.reported(row, column) for part in table.parts for column in part.columns):
            assert f"| {row_title(row)}, " in page
            assert row_title(row).replace("_", r"\_").replace("+", "$+$") in tex
    with Path("r/table.csv").open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    for part in table.parts:
        for row in table.rows:
            mine = [x for x in lines if (x["data"], x["setting"]) == (part.data, part.name)
                    and (x["base"], x["method"]) == (row.group, row.label)]  # fmt: skip
            reported = {x["task"]: x["reported"] for x in mine if x["reported"]}
            assert reported == {c: part.reported(row, c) for c in part.columns if part.reported(row, c)}
            done = {(x["task"], x["selection"]) for x in mine if x["ours"]}
            if row.method not in ran:
                assert not done
                continue
            columns = {c for c in part.columns if set(part.means.get(c, [c])) <= tasks}
            free = {"entropy", "mutual information", "neighbourhood density"}
            assert done == {(column, choice) for column in columns for choice in {FINAL, ORACLE, *free}}


@pytest.mark.parametrize("name", table_names())
def test_one_task_of_every_table(
    name: str, tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, (methods, tasks) = read_table(name), CHEAP[name]
    started = in_this_process(monkeypatch)
    run(table, tree, "--methods", methods, "--tasks", tasks)
    rows = [row for row in table.rows if row.method in methods.split(",")]
    some = [part for part in table.parts if set(part.tasks) & set(tasks.split(","))]
    assert len(started) == len(rows) * len(some)
    assert_written(table, capsys.readouterr().out, set(tasks.split(",")), set(methods.split(",")))
    results = [json.loads(file.read_text()) for file in Path("r/results").rglob("*.json")]
    assert len(results) == len(started)
    assert {one["study"] for one in results} == {f"reproduce {name}"}


@pytest.mark.parametrize("name", table_names())
def test_the_whole_of_every_table(
    name: str, tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = read_table(name)
    started = in_this_process(monkeypatch)
    run(table, tree)
    tasks = {task for part in table.parts for task in part.tasks}
    rows = [row for row in table.rows if row.method is not None]
    assert len(started) == len(rows) * sum(len(part.tasks) for part in table.parts)
    assert_written(table, capsys.readouterr().out, tasks, set(table.methods))
    for part in table.parts:
        found = {file.stem for file in Path("r/results", part.data, part.setting).glob("*.json")}
        assert found == {row.name for row in rows}
        for row in rows:
            file = Path("r/results", part.data, part.setting, f"{row.name}.json")
            result = json.loads(file.read_text())
            reported = part.reported(row, part.headline)
            assert result["reported"] == (None if reported is None else float(reported))
            assert (result["n"], result["headline"]) == (1, part.headline)
