"""Mean and std over seeds and tasks, the best and those near it, safe files: on made-up numbers."""

import csv
from pathlib import Path

import pytest

from fastget.archive.statistics import Mean, cell, markdown, marks, mean_over_seeds, mean_over_tasks, metric_of
from fastget.studies.jobs import Job, Outcome
from fastget.studies.outcomes import write_outcomes


def test_over_seeds() -> None:
    assert mean_over_seeds({}) is None
    assert mean_over_seeds({3: 0.5}) == Mean(0.5, None, 1)
    figure = mean_over_seeds({0: 0.8, 1: 0.9})
    assert figure is not None
    assert figure.mean == pytest.approx(0.85)
    assert figure.std == pytest.approx(0.0707107, abs=1e-6)  # of the sample


def test_the_std_over_tasks_is_that_of_each_seeds_mean() -> None:
    easy, hard = {0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.1, 1: 0.2, 2: 0.3}
    assert mean_over_tasks([easy, hard]) == pytest.approx(
        (0.5, 0.0, 3)
    )  # tasks unlike each other, and no doubt of the mean
    assert mean_over_tasks([easy, {0: 0.1}]) == Mean(0.5, None, 1)  # seeds 1 and 2 lack a task
    assert mean_over_tasks([easy, {}]) is None
    assert mean_over_tasks([]) is None


def test_the_best_and_those_within_its_std_are_marked() -> None:
    figures = [Mean(0.900, 0.010, 3), Mean(0.891, 0.001, 3), Mean(0.889, 0.5, 3), None, Mean(0.900, 0.2, 3)]
    found = marks(figures)
    assert found == ["best", "near", "", "", "best"]  # whose own std is wide is not near for that
    cells = [cell(figure, mark, 3, "failed") for figure, mark in zip(figures, found, strict=True)]
    assert cells == ["**90.0 ± 1.0**", "89.1 ± 0.1 †", "88.9 ± 50.0", "failed", "**90.0 ± 20.0**"]
    assert marks([Mean(0.9, None, 1), Mean(0.9 - 1e-9, None, 1)]) == ["best", ""]  # one seed tells no std
    assert marks([None, None]) == ["", ""]
    assert cell(Mean(0.5, 0.1, 2), "", 3) == "50.0 ± 10.0 (n = 2)"


def test_markdown_cells_cannot_break_the_table() -> None:
    assert markdown(["a", "b|c"], [["1", "2"]]) == ["| a | b\\|c |", "| --- | ---: |", "| 1 | 2 |"]


def test_a_spreadsheet_finds_no_formula(tmp_path: Path) -> None:
    settings = {"method.name": "get", "data.source": "=HYPERLINK(1)", "data.target": "b, c"}
    job = Job(folder=tmp_path / "j", settings=settings, setting="uda", seed=0, config=None, refused="no, it\nis not")
    write_outcomes(tmp_path / "r.csv", [Outcome(job=job, status="refused", reason=job.refused)])
    with (tmp_path / "r.csv").open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert (row["source"], row["target"], row["reason"]) == ("'=HYPERLINK(1)", "b, c", "no, it\nis not")
    assert row["accuracy"] == ""


def test_the_data_sets_own_metric() -> None:
    assert metric_of("visda2017") == "mean_class_accuracy"
    assert metric_of("office-home") == "accuracy"
    assert metric_of("folder") == "mean_class_accuracy"
