"""The command line: its exit codes, its help, and messages for people."""

import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from fastget import __version__
from fastget.commands import doctor
from fastget.commands.main import COMMANDS, main
from fastget.config import Config, walk
from tests.pictures import this_fastget

SHORT = ["--set", "train.max_steps=4", "train.warmup_steps=2", "train.batch_size=4", "network.name=small",
         "network.weights=none", "data.resize=16", "data.crop=12"]  # fmt: skip


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two domains of two classes."""
    random = np.random.default_rng(0)
    for domain in ("photo", "sketch"):
        for name in ("cat", "dog"):
            (tmp_path / "data" / domain / name).mkdir(parents=True)
            for i in range(6):
                pixels = random.integers(0, 255, (20, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / domain / name / f"{i}.jpg")
    return tmp_path / "data"


def test_folder_data(folders: Path) -> None:
    args = ["train", "--data", "folder", "--root", str(folders), "--source", "photo", "--target", "sketch", *SHORT]
    assert main([*args, "--out", "r"]) == 0
    assert Path("r/checkpoints/final.pt").is_file()
    assert main([*args, "--out", "r"]) == 2
    assert main([*args, "--out", "r", "--resume", "auto"]) == 0
    assert main(["train", "--config", "r/config.yaml"]) == 0


def test_what_is_likely_not_meant_gets_a_remark(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folders / "photo" / "cat" / "0.heic").write_bytes(b"x")
    args = ["train", "--data", "folder", "--root", str(folders), "--source", "photo", "--target", "photo", *SHORT]
    assert main([*args, "train.batch_size=50", "--out", "r"]) == 0
    shown = capsys.readouterr().out
    assert "12 of the 12 images of photo are among the target's too" in shown
    assert "train.batch_size=50 is more than the 12 images of photo" in shown
    assert "photo: 1 not used, .heic is not read" in shown
    assert "photo/cat/0.heic" in Path("r/split.json").read_text()


def test_unlabelled_target_is_predicted_not_scored(folders: Path) -> None:
    plain = folders / "plain"
    plain.mkdir()
    for i, file in enumerate((folders / "sketch").rglob("*.jpg")):
        file.rename(plain / f"{i}.jpg")
    args = ["train", "--data", "folder", "--root", str(folders), "--source", "photo", "--target", "plain", *SHORT]
    assert main([*args, "--out", "u"]) == 0
    assert "null" in Path("u/summary.json").read_text()
    assert len(Path("u/predictions.csv").read_text().splitlines()) == 13


def test_list_data(folders: Path) -> None:
    for domain in ("photo", "sketch"):
        lines = [f"{domain}/{name}/{i}.jpg {label}\n" for label, name in enumerate(("cat", "dog")) for i in range(6)]
        Path(f"{domain}.txt").write_text("".join(lines))
    args = [
        "train",
        "--data",
        "lists",
        "--root",
        str(folders),
        "--source",
        "photo.txt",
        "--target",
        "sketch.txt",
        *SHORT,
    ]
    assert main([*args, "--out", "l"]) == 0
    assert '"cat"' in Path("l/summary.json").read_text()


def test_a_failed_run_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--set", "train.max_steps=6", "train.log_every=1", "optim.lr=1e18", "--out", "f"]) == 1
    assert "Try a lower optim.lr" in " ".join(capsys.readouterr().err.split())


def test_help_explains_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for key, info, _ in walk(Config()):
        assert key in text
        assert " ".join(info.metadata["help"].split()) in text


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "words", [[], *([name] for name in COMMANDS), ["data", "check"], ["data", "pack"], ["features", "import"]],
    ids=" ".join,
)  # fmt: skip
def test_help_fits_the_terminal(
    words: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > columns] == []
    about = text.partition("\n\n")[2]
    assert about
    assert not about.startswith(("options:", "positional", "data:"))  # a description comes first


def test_help_of_one_section(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help", "get"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "get.tau [0.15]" in text
    assert "optim.lr" not in text
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help", "optm"])
    assert stop.value.code == 2
    assert "no section 'optm' (did you mean 'optim'?)" in " ".join(capsys.readouterr().err.split())


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"fastget {__version__}\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["train", "--bad-image=skip", "--sorce", "a"], "did you mean '--source'?"),
        (["data", "chek", "digits"], "did you mean 'check'?"),
        (["data", "check", "digits", "--qick"], "did you mean '--quick'?"),
        (["demo", "--sedes", "1"], "did you mean '--seeds'?"),
    ],
)
def test_a_misspelt_option_gets_a_suggestion(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert hint in " ".join(capsys.readouterr().err.split())


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("Python", "torch", "CUDA", "triton", "DALI", "apex", "step's maths", "data.loader"):
        assert word in text


@pytest.mark.parametrize(
    ("chosen", "device", "said"),
    [
        ("dali", "cuda", "dali"),
        ("torchvision", "cuda", "torchvision: no DALI here"),
        ("torchvision", "cpu", "torchvision: PIL's own pixels. DALI saves up to 1.7 ms"),
    ],
)
def test_doctor_says_why_a_loader_is_taken(
    chosen: str, device: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastget.common.device.choose_device", lambda wanted: torch.device(device))
    monkeypatch.setattr("fastget.loading.loader.choose_loader", lambda wanted, device: chosen)
    backend = ModuleType("fastget.kernels" if device == "cuda" else "fastget.reference")
    monkeypatch.setattr("fastget.methods.backend.choose_backend", lambda wanted, device: backend)
    monkeypatch.setattr("fastget.methods.tuned.in_use", lambda device: "rules")
    told = dict(doctor.decisions())
    assert told["data.loader"].startswith(said)
    assert told["a step's maths"].startswith("triton kernels" if device == "cuda" else "reference (plain PyTorch)")


def test_module_is_the_command() -> None:
    """And a reader that has seen enough is no failure."""
    shell = f"set -o pipefail; {sys.executable} -m fastget train --help data | head -n 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=this_fastget())
    assert done.stdout.startswith("data: ")
    assert done.returncode in (0, 128 + signal.SIGPIPE)
    assert done.stderr == ""
