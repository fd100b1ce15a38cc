"""What cannot be printed, and what a signal says where nothing handles it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastget.commands import doctor
from fastget.commands.main import main
from tests.pictures import this_fastget


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_under_standard_output() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fastget", "data", "list"], stdout=full, stderr=subprocess.PIPE, text=True,
            env=this_fastget(),
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "fastget: cannot write to standard output: No space left on device\n"


def test_a_command_that_is_stopped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "run", lambda args: signal.raise_signal(signal.SIGTERM))
    assert main(["doctor"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "fastget: stopped by SIGTERM\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
