"""Which runs a folder holds, and which of them are one group."""

from pathlib import Path

import pytest

from fastget.report.read import find_runs, group, read_run
from tests.report.support import write_run


def test_a_run_its_seeds_and_a_study(tmp_path: Path) -> None:
    write_run(tmp_path / "study" / "uda" / "photo-sketch" / "get" / "seed-0")
    write_run(tmp_path / "study" / "uda" / "photo-sketch" / "get" / "seed-1", seed=1)
    write_run(tmp_path / "study" / "uda" / "photo-sketch" / "mcc" / "seed-0", method__name="mcc")
    write_run(tmp_path / "alone")
    seeds = tmp_path / "study" / "uda" / "photo-sketch" / "get"
    assert [run.seed for run in find_runs([seeds])] == [0, 1]
    assert [run.folder for run in find_runs([tmp_path / "alone"])] == [tmp_path / "alone"]
    groups = group(find_runs([tmp_path / "study", seeds]))  # none twice
    assert [(one.name, len(one.runs)) for one in groups] == [("get", 2), ("mcc", 1)]


def test_groups_are_named_by_what_differs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", get__tau=0.1)
    write_run(tmp_path / "b", get__tau=0.2)
    write_run(tmp_path / "c", get__tau=0.2, data__setting="pda")
    write_run(tmp_path / "d", get__tau=0.2, data__target="clipart", train__device="cuda")
    names = [one.name for one in group(find_runs([tmp_path]))]
    assert names == [
        "get, uda, photo → sketch, get.tau=0.1",
        "get, uda, photo → sketch, get.tau=0.2",
        "get, pda, photo → sketch",
        "get, uda, photo → clipart",
    ]


def test_an_unfinished_run_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", finished=False))
    assert (run.summary, run.predictions, run.classes, run.steps) == (None, [], [], 20)


def test_what_is_no_run_is_an_error_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder .*gone"):
        find_runs([tmp_path / "gone"])
    with pytest.raises(ValueError, match=r"holds no run: expected config\.yaml and metrics\.jsonl"):
        find_runs([tmp_path])
    folder = write_run(tmp_path / "run")
    (folder / "predictions.csv").write_text("path,label\na,b\n")
    with pytest.raises(ValueError, match=r"predictions\.csv is damaged"):
        find_runs([folder])
    (folder / "config.yaml").write_text("data: [")
    with pytest.raises(ValueError, match=r"config\.yaml is damaged"):
        find_runs([folder])
    (folder / "config.yaml").write_text("data: 3")
    with pytest.raises(ValueError, match="no run's configuration"):
        find_runs([folder])
