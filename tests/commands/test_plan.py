"""`fastget plan`: a table, JSON, and messages for people."""

from __future__ import annotations

import json

import pytest

from fastget.commands.main import main

VISDA = ["plan", "--data", "visda2017", "--set", "network.name=resnet18"]


@pytest.fixture(autouse=True)
def cache(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path))


def test_a_table_with_its_assumptions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*VISDA, "--card", "a100", "--cache", "raw"]) == 0
    text = capsys.readouterr().out
    assert "152,397 source images, 55,388 target images" in text
    assert "images/s" in text
    assert "bound by" in text
    for gpus in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        assert f"│ {gpus:>4} │" in text
    assert "assumptions:" in text
    flat = " ".join(text.split())
    for words in ("70% of 312 TFLOPS", "8 CPU cores a GPU", "packed raw records", "of 4,096 target images",
                  "what that does to the accuracy"):  # fmt: skip
        assert words in flat
    table = [line for line in text.splitlines() if line.startswith(("│", "┃"))]
    assert all(len(line) <= 80 for line in table)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*VISDA, "--card", "h100", "--gpus", "1,8", "--images", "1e8,1e7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["images"] == {"source": 10**8, "target": 10**7, "labelled_target": 0, "classes": 12}
    assert [row["gpus"] for row in told["rows"]] == [1, 8]
    assert told["cache"]["bytes"]["raw"] > 2e13
    assert told["assumptions"]
    assert {"images_per_second", "hours", "bound", "memory", "fits", "parts"} <= told["rows"][0].keys()


def test_the_cpu_says_whether_it_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--card", "cpu", "--set", "train.batch_size=4"]
    assert main(words) == 0
    assert "nothing was measured here (--measure does)" in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--measure"]) == 0
    assert "this CPU was measured just now" in " ".join(capsys.readouterr().out.split())
    assert main(words) == 0
    assert "this CPU was measured on small at 28, 1 threads" in " ".join(capsys.readouterr().out.split())


def test_the_cards_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--cards"]) == 0
    assert "h100     NVIDIA H100 SXM: 989 TFLOPS, 3,350 GB/s, 80 GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--card", "a1000"], "unknown card 'a1000' (did you mean 'a100'"),
        (["--data", "folder", "--card", "t4"], "give --images SOURCE,TARGET and --classes"),
        (["--data", "features", "--card", "t4"], "runs no backbone"),
        (["--data", "visda2017", "--source", "tran", "--card", "t4"], "must be one of train, validation, got 'tran'"),
        (["--card", "t4", "--measure"], "--measure times this machine's CPU"),
        (["--card", "t4", "--set", "train.batch_sise=4"], "did you mean 'train.batch_size'"),
    ],
)
def test_bad_input_is_exit_code_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--images", "-5,10"], "a whole number from 1 to 1e10 is wanted, got '-5'"),
        (["--images", "0,10"], "got '0'"),
        (["--images", "10"], "two numbers are wanted"),
        (["--images", "1.5,10"], "got '1.5'"),
        (["--images", "nan,10"], "got 'nan'"),
        (["--classes", "-1"], "got '-1'"),
        (["--gpus", "1,100000"], "at most 4096 GPUs"),
        (["--gpus", "0"], "got '0'"),
        (["--wire", "0"], "a number above 0"),
        (["--cache", "row"], "did you mean 'raw'?"),
    ],
)
def test_wrong_numbers(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["plan", *(f"{words[0]}={words[1]}".split())])
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
