"""A command from a fresh Python, and as a fork of one that has imported everything: what it prints, and how it ends."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from fastget import __version__
from fastget.common.lock import lock_file
from fastget.studies import processes
from fastget.studies.processes import FASTGET, Process, start


def ended(process: Process) -> int:
    for _ in range(1200):
        code = process.poll()
        if code is not None:
            return code
        time.sleep(0.05)
    raise AssertionError("it did not end in a minute")


@pytest.mark.parametrize("warm", [False, True])
def test_prints_to_the_file_and_tells_its_exit_code(warm: bool, tmp_path: Path) -> None:
    for words, code, said in ((["--version"], 0, __version__), (["train", "--method", "gte"], 2, "did you mean 'get'")):
        with (tmp_path / "log").open("wb") as log:
            process = start([*FASTGET, *words], os.environ, log.fileno(), warm=warm)
        assert isinstance(process, subprocess.Popen) is not (warm and processes.CAN_FORK)
        assert ended(process) == code
        assert said in (tmp_path / "log").read_text()


def test_a_fork_has_its_own_variables_session_and_the_file(tmp_path: Path) -> None:
    """The file is locked as long as it lives, and a signal ends it."""
    module = tmp_path / "own.py"
    module.write_text(
        "import os, time\nprint(os.environ['COLOUR'], os.getsid(0) == os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    words = [*FASTGET, "train", "--set", f"method.module={module}"]
    with (tmp_path / "log").open("ab") as log:
        assert lock_file(log.fileno())
        process = start(words, {**os.environ, "COLOUR": "green"}, log.fileno(), warm=True)
    for _ in range(600):
        if (tmp_path / "log").read_text():
            break
        time.sleep(0.05)
    assert (tmp_path / "log").read_text() == "green True\n"
    assert "COLOUR" not in os.environ
    with (tmp_path / "log").open("ab") as again:
        assert lock_file(again.fileno()) is False
        process.kill()
        assert ended(process) == -9
        assert lock_file(again.fileno())


def test_other_commands_are_not_forked(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = start(["echo", "hello"], os.environ, log.fileno(), warm=True)
    assert ended(process) == 0
    assert (tmp_path / "log").read_text() == "hello\n"
