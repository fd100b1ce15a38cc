"""Results of benchmarks: read, compared within a case and with an older file, drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.report import Row, main, moved, ratios, read_records, tables
from benchmarks.results import CountReads, interleaved, write


def rows(cost: float) -> list[Row]:
    return [
        Row("train", "resnet18", "peer", {"CPU-ms an image": 10.0, "images/s": 3.0}),
        Row("train", "resnet18", "fastget", {"CPU-ms an image": cost, "images/s": 4.5}),
    ]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    write(rows(5.0), tmp_path / "now.json")
    write(rows(4.0), tmp_path / "then.json")
    return tmp_path / "now.json", tmp_path / "then.json"


def test_a_file_tells_machine_versions_commit_and_load(files: tuple[Path, Path]) -> None:
    held = json.loads(files[0].read_text(encoding="utf-8"))
    assert {"device", "versions", "commit", "platform"} <= held["machine"].keys()
    assert held["machine"]["versions"]["torch"]
    assert len(held["load"]) == 3
    assert read_records([files[0]]).rows == rows(5.0)


def test_ratios_are_within_a_case_and_to_the_older_file(files: tuple[Path, Path]) -> None:
    now, then = (read_records([file]) for file in files)
    assert ratios(now.rows) == {("train", "resnet18", "peer"): 1.0, ("train", "resnet18", "fastget"): 2.0}
    text = "\n".join(tables(now, then))
    assert "| 2.00x | 2.50x | 0.80 (moved) |" in text
    assert moved(now, then) == ["train, resnet18, fastget: 2.00x, was 2.50x"]
    assert moved(then, now) == []  # what rose is no loss


def test_pytest_benchmark_s_files(tmp_path: Path) -> None:
    stats = {"median": 0.002, "min": 0.001}
    one = {"name": "test_step[36x65x256-eager]", "stats": stats, "extra_info": {"device": "cpu", "launches": 6}}
    held = {"benchmarks": [one], "machine_info": {"node": "n", "torch": "2"}, "datetime": "now"}
    (tmp_path / "k.json").write_text(json.dumps(held), encoding="utf-8")
    assert read_records([tmp_path / "k.json"]).rows == [
        Row("step", "36x65x256", "eager", {"ms, median": 2.0, "ms, least": 1.0, "launches": 6})
    ]


def test_the_command(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now, then = map(str, files)
    assert main([now, "--baseline", then]) == 0
    assert "fell: train, resnet18, fastget" in capsys.readouterr().out
    assert main([now, "--baseline", then, "--fail"]) == 1
    assert main([now, "--out", str(tmp_path / "out")]) == 0
    assert "![train: CPU-ms an image](train.png)" in (tmp_path / "out" / "bench.md").read_text(encoding="utf-8")
    assert (tmp_path / "out" / "train.png").stat().st_size > 1000


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"format": "fastget-bench-1"}'])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    assert main([str(tmp_path / "x.json")]) == 2
    assert "results of benchmarks" in capsys.readouterr().err
    assert main([str(tmp_path / "none.json")]) == 2


def test_blocks_take_turns_and_reads_are_counted() -> None:
    import torch

    order: list[str] = []
    found, took = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert order == ["a", "b"] * 3
    assert set(found) == set(took) == {"a", "b"}
    with CountReads() as reads:
        value = torch.ones(3).sum()
        assert reads.count == 0
        value.item()
        value.cpu()
    assert reads.count == 2
