"""`fastget reproduce` from end to end: small trees with the data sets' own names, a small network, two steps."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fastget.archive.statistics import ORACLE, choices
from fastget.commands.main import main
from fastget.studies.reproduce import measure
from fastget.studies.reproduce.recipe import read_table
from fastget.studies.reproduce.write import row_title
from tests.pictures import this_fastget
from tests.studies.reproduce.support import SMALL, Died, in_this_process, write_tree
from tests.studies.support import mtimes


def rows(file: str) -> list[dict[str, str]]:
    with Path(file).open(newline="") as stream:
        return list(csv.DictReader(stream))


def args(table: str, *more: str, seeds: str = "0") -> list[str]:
    return ["reproduce", table, "--root", "data", "--methods", "source-only,get", "--seeds", seeds, "--gpus", "1",
            "--out", "r", *more, "--set", *SMALL]  # fmt: skip


def assert_all_rows(table: str, text: str) -> None:
    """What is printed has every row of the paper's."""
    for row in read_table(table).rows:
        assert row_title(row) in text


def test_a_table_that_dies_in_the_middle_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(Path("data/office31"), "office31")
    first = in_this_process(monkeypatch, dies_after=5)
    with pytest.raises(Died):
        main(args("office-31-uda", "--bases", "plain"))
    done = mtimes(Path("r"))
    assert (len(first), len(done)) == (5, 5)
    capsys.readouterr()
    started = in_this_process(monkeypatch)
    assert main(args("office-31-uda", "--bases", "plain")) == 0
    text = capsys.readouterr().out
    assert len(started) == 12 - 5
    assert not set(started) & set(first)
    assert {file: moment for file, moment in mtimes(Path("r")).items() if file in done} == done
    assert "to run: 7 jobs, 14 steps" in text
    assert text.index("to run:") < text.index("12/12")
    assert_all_rows("office-31-uda", text)
    # ours is the mean of the runs, beside what the paper prints
    found = {(row["method"], row["task"], row["selection"]): row for row in rows("r/table.csv") if row["n"] == "1"}
    tasks = ["A->D", "A->W", "D->A", "D->W", "W->A", "W->D"]
    runs = [json.loads(file.read_text())["accuracy"] for file in sorted(Path("r").rglob("get/seed-0/summary.json"))]
    assert len(runs) == 6
    mean = found["GeT", "mean", "final"]
    assert float(mean["ours"]) == pytest.approx(100 * sum(runs) / 6, abs=1e-3)
    assert mean["reported"] == "90.6"
    assert float(mean["difference"]) == pytest.approx(float(mean["ours"]) - 90.6, abs=1e-3)
    for task in tasks:
        assert float(found["GeT", task, ORACLE]["ours"]) >= float(found["GeT", task, "final"]["ours"])
    assert {"final", ORACLE, "entropy", "mutual information", "neighbourhood density"} == {key[2] for key in found}
    alone = [row for row in rows("r/table.csv") if row["method"] == "SHOT"]
    assert {(row["selection"], row["ours"], row["n"]) for row in alone} == {("", "", "0")}
    tex = Path("r/table.tex").read_text()
    assert r"A$\to$D" in tex
    assert tex.count(r"\midrule") == 4 + 1  # a group each, and the selections
    assert r"& final & best iterate (oracle) & entropy & mutual information & neighbourhood density \\" in tex
    # results as data
    result = json.loads(Path("r/results/office31/uda/get.json").read_text())
    assert result["tasks"]["mean"]["reported"] == 90.6
    assert result["tasks"]["mean"]["ours"] == float(mean["ours"])
    assert (result["tasks"]["mean"]["n"], result["tasks"]["mean"]["std"]) == (1, None)
    assert result["selection"] == "final model"
    assert len(result["configuration_sha256"]) == 64
    assert result["machine"][0].startswith("CPU")
    other = json.loads(Path("r/results/office31/uda/source-only.json").read_text())
    assert other["configuration_sha256"] != result["configuration_sha256"]
    # the folder is this table's, and nothing of it is left to run
    again = in_this_process(monkeypatch)
    assert main(args("office-31-uda", "--bases", "plain")) == 0
    assert not again
    assert "nothing is left to run" in capsys.readouterr().out
    assert main([*args("office-31-uda", "--bases", "plain", "--recipe", "paper")]) == 2
    assert "recipe (default there, not here" in " ".join(capsys.readouterr().err.split())


def test_some_tasks_stand_for_themselves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where --tasks leaves some out there is no mean: the table and the selections are of the tasks."""
    write_tree(Path("data"), "office31")
    in_this_process(monkeypatch)
    assert main(args("office-31-uda", "--bases", "plain", "--tasks", "A->D,D->A")) == 0
    text = capsys.readouterr().out
    assert_all_rows("office-31-uda", text)
    assert "A->D" in text
    runs = {file.parent.parent.parent.name: json.loads(file.read_text())["accuracy"]
            for file in Path("r").rglob("get/seed-0/summary.json")}  # fmt: skip
    line = next(line for line in text.splitlines() if "│ GeT " in line)
    for task, paper in (("amazon-dslr", 95.4), ("dslr-amazon", 76.6)):
        assert f"{100 * runs[task]:.1f}" in line
        assert f"{100 * runs[task] - paper:+.1f}" in line
    selection = Path("r/table.md").read_text().partition("## Selection")[2]
    assert re.findall(r"^\| office31, uda, (\S+) \| final \|", selection, re.MULTILINE) == ["A→D", "D→A"]
    assert "not run" not in selection


def test_a_failed_task_is_a_row_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(Path("data"), "visda2017")
    in_this_process(monkeypatch)
    assert main([*args("visda2017-uda"), "train.warmup_steps=2"]) == 1  # no step is left for a method
    text = capsys.readouterr().out
    assert_all_rows("visda2017-uda", text)
    assert "failed: get, visda2017, uda, train -> validation, seed 0: train.warmup_steps (2) leaves no step" in text
    assert [row["status"] for row in rows("r/results.csv")] == ["done", "failed"]
    table = Path("r/table.md").read_text()
    assert "| GeT, ours | failed |" in table
    assert "- get in visda2017, uda (train -> validation; seeds 0), failed: train.warmup_steps (2) leaves" in table
    failed = [row for row in rows("r/table.csv") if row["method"] == "GeT" and row["selection"] == "final"]
    assert [(row["reported"], row["ours"], row["status"]) for row in failed] == [("83.4", "", "failed")]
    assert Path("r/results/visda2017/uda/source-only.json").is_file()
    assert not Path("r/results/visda2017/uda/get.json").exists()


def test_choices_of_an_iterate() -> None:
    lines: list[dict[str, Any]] = [
        {"step": 1, "loss": 3.0},
        {"step": 2, "accuracy": 0.5, "entropy": 0.2, "mutual_information": 0.1, "neighbourhood_density": None},
        {"step": 4, "accuracy": 0.8, "entropy": 0.4, "mutual_information": 0.3, "neighbourhood_density": None},
        {"step": 6, "accuracy": 0.6, "entropy": 0.3, "mutual_information": 0.9, "neighbourhood_density": None},
    ]
    assert choices(lines, "accuracy") == {ORACLE: 0.8, "entropy": 0.5, "mutual information": 0.6}
    held_out = [{**line, "validation_mean_class_accuracy": -line["step"]} for line in lines]
    assert choices(held_out, "accuracy")["validation"] == 0.5
    assert choices(lines, "mean_class_accuracy") == {}


def test_the_time_is_measured_by_a_short_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(Path("data"), "visda2017")
    real = measure.short_run
    in_this_process(monkeypatch)
    assert main(args("visda2017-uda")) == 0
    assert "nothing was measured" in capsys.readouterr().out  # four steps: a measured run has more
    monkeypatch.setattr(measure, "short_run", real)
    assert main(args("visda2017-uda", "--out", "p", seeds="0,1,2")) == 0
    text = capsys.readouterr().out
    found = re.search(
        r"time: about (\S+) (\w+): 1 at a time, each at (\S+) image passes a second, and (\S+) s for its start", text
    )
    assert found is not None
    assert "ms a step)" in text
    assert "(measured:" in text
    passes = float(re.findall(r", ([\d,]+) image passes", text)[0].replace(",", ""))
    told = float(found[1]) * {"s": 1, "min": 60}[found[2]]
    assert told == pytest.approx(passes / float(found[3].replace(",", "")) + 6 * float(found[4]), rel=0.1, abs=1)
    # of a run that cannot be, the reason
    assert main([*args("visda2017-uda", "--out", "q", seeds="0,1,2"), "network.weights=gone.pt"]) == 1
    text = capsys.readouterr().out
    assert "the run to measure it failed:" in text
    assert "gone.pt" in text


def test_a_killed_process_goes_on() -> None:
    write_tree(Path("data"), "visda2017")
    words = [sys.executable, "-m", "fastget", *args("visda2017-uda", seeds="0,1")]
    process = subprocess.Popen(words, env=this_fastget(), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not mtimes(Path("r")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = mtimes(Path("r"))
    assert 1 <= len(done) < 4
    assert subprocess.run(words, env=this_fastget(), stdout=subprocess.DEVNULL).returncode == 0
    after = mtimes(Path("r"))
    assert len(after) == 4
    assert {file: after[file] for file in done} == done
