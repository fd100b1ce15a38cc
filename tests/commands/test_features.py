"""`fastget features` on the command line."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fastget.commands.main import main
from tests.features.support import torch_file
from tests.pictures import this_fastget, write_domains

SETTINGS = ["--set", "network.name=small", "network.weights=none", "data.resize=16", "data.crop=16"]


def test_made_shown_and_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_domains(tmp_path / "images", ("photo", "sketch", "clipart"))
    making = ["features", "--data", "folder", "--root", str(root), "--out", "out", *SETTINGS]
    assert main([*making[:-5], "--source", "photo", "--target", "sketch", *SETTINGS]) == 0
    assert "72 images\n" in capsys.readouterr().out
    assert main([*making[:-5], "--domains", "all", *SETTINGS]) == 0
    assert "108 images, 72 of them were there already\n" in capsys.readouterr().out
    assert main(["features", "show", "out"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("out: folder by small (random of seed 0, sha256 ")
    assert [line.partition(":")[0] for line in lines[1:]] == ["clipart", "photo", "sketch"]
    assert lines[2].startswith("photo: 36 x 256 float16, 3 classes, 1 shard, ")
    assert main(["features", "show", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == ["ant", "bee", "cat"]
    training = ["train", "--data", "features", "--root", "out", "--source", "clipart", "--target", "sketch"]
    assert main([*training, "--out", "run", "--set", "train.max_steps=4", "train.batch_size=8"]) == 0
    assert json.loads(Path("run/summary.json").read_text())["images"] == {"source": 36, "target": 36}


def test_import(capsys: pytest.CaptureFixture[str]) -> None:
    torch_file(Path("given.pt"))
    words = ["features", "import", "given.pt", "--out", "out", "--name", "small", "--backbone", "resnet50"]
    assert main(words) == 0
    assert "photo: 48 x 64 float16, 4 classes, 1 shard" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "digits"], "say where the features go: --out FOLDER"),
        (["--out", "o", "--domains", "all", "--source", "x"], "--domains goes without --source and --target"),
        (["--out", "o", "--domains", ","], "--domains takes all, or names separated by commas"),
        (["--out", "o", "--data", "features"], "--data features names features already"),
        (["--out", "o", "--data", "folder"], "data.root is missing"),
        (["--out", "o", "--set", "network.nam=x"], "did you mean 'network.name'?"),
        (["show", "nowhere"], "nowhere is no folder of features"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["features", *words]) == 2
    assert said in capsys.readouterr().err
    assert not Path("o").exists()


def test_data_commands_send_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "features", "--root", "out"]) == 2
    assert "`fastget features show FOLDER`" in capsys.readouterr().err


def test_killed_at_random_moments_it_goes_on() -> None:
    command = [sys.executable, "-m", "fastget", "features", "--data", "digits", "--out"]
    began = time.perf_counter()
    subprocess.run([*command, "whole"], check=True, capture_output=True, env=this_fastget())
    seconds = time.perf_counter() - began
    chance = random.Random(0)
    for _ in range(5):
        process = subprocess.Popen(
            [*command, "killed"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=this_fastget()
        )
        time.sleep(chance.uniform(0.3, 1) * seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([*command, "killed"], check=True, capture_output=True, env=this_fastget())
    whole, killed = ({file.name: file.read_bytes() for file in Path(name).iterdir()} for name in ("whole", "killed"))
    assert whole == killed
