"""What a new user reads first: README, help, notes, and the smaller words of the commands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch import nn

from tests.pictures import this_fastget
from tests.silent.support import FEW, SMALL, on_folders, say, text_of, watching

# --- documents -----------------------------------------------------------------------------------------


def test_the_readme_s_loop_can_be_copied() -> None:
    (loop,) = re.findall(r"```python\n(import fastget\n.*?)```", text_of("README.md"), re.DOTALL)
    assert "optimizer.zero_grad()" in loop, "gradients would add up from step to step"
    assert "class numbers" in loop, "what `predictions` holds is not said"


def test_the_readme_says_early_what_has_not_run_on_a_gpu_and_for_whom_it_is() -> None:
    screen = " ".join(" ".join(text_of("README.md").splitlines()[:50]).split())
    for part in ("run on a GPU yet", "For whoever", "TLlib", "ATDOC's code", "nine architectures", "float64"):
        assert part in screen, f"nothing of {part!r} among the first 50 lines"


def test_there_are_notes_on_installing() -> None:
    notes = text_of("docs", "install.md")
    for system in ("macOS", "WSL", "conda", "CPU-only torch"):
        assert system in notes, f"no word on installing with {system}"
    assert "docs/install.md" in text_of("README.md")


# --- a first run -----------------------------------------------------------------------------------------


def test_a_first_run_for_a_laptop(place: Path) -> None:
    """Offered by the help, and with what the full run would cost."""
    assert "quick" in say("train", "--help").words, "no first run for a laptop is offered"
    own = on_folders(place / "data", *FEW, "train.eval_every=2", options=("--preset", "quick"))
    done = say(*own)
    assert done.code == 0, done.words
    assert re.search(r"The full run, .* image passes of training", done.words), done.words[-400:]
    assert "at the speed measured here about" in done.words


# --- smaller -------------------------------------------------------------------------------------------


def test_an_office_31_tree_under_another_name_gets_a_hint(place: Path) -> None:
    for domain in ("amazon", "webcam"):
        shutil.copytree(place / "data" / "photo", Path("data") / domain / "images")
    done = say("train", "--data", "folder", "--root", "data", "--source", "amazon", "--target", "webcam",
               "--out", "run", "--set", *SMALL, *FEW)  # fmt: skip
    assert "--data office31" in done.words, f"no hint, and exit code {done.code}: {done.words[-200:]}"
    assert done.code == 2


def test_the_message_about_onnx_names_the_extra(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    done = say("export", "--checkpoint", place / "run", "--out", "model.onnx")
    assert done.code == 2, done.words
    assert "fastget[onnx]" in done.words or ".[onnx]" in done.words, f"what to install: {done.words[-200:]}"


def test_the_bar_moves_with_every_step(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, in steps of a quarter of a second."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")

    def slowly(module: nn.Module, images: int) -> None:
        if module.training:
            time.sleep(0.25)

    with watching(slowly):
        done = say(*on_folders(place / "data", *FEW, "train.max_steps=5", "train.log_every=100"))
    assert done.code == 0, done.words
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.out)
    assert re.search(r"\b[1234]/5\b", plain), "it stands still between the lines of the log"


@pytest.mark.slow
def test_the_report_of_the_kernels_speaks_before_it_has_compiled_them_all() -> None:
    """Which takes minutes; a word is due in one."""
    environment = {name: value for name, value in this_fastget().items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-u", "-m", "fastget.kernels.audit.report", "--arch", "sm_90"]
    with open("said", "wb") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
    ends = time.monotonic() + 60
    while not Path("said").stat().st_size and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.5)
    running, words = process.poll() is None, Path("said").read_text()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert "compiling" in words, f"not a word in a minute: {words!r}"
    assert running
