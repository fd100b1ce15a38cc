"""One process at a time in a folder: who holds it is named, and nothing that has ended holds it."""

import dataclasses
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fastget.common import lock
from fastget.common.lock import NOTE, Busy, Owner, busy, held
from tests.pictures import this_fastget

HOLDER = "import sys, time; from pathlib import Path; from fastget.common.lock import held\n"
HOLDER += "with held(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


def left_by(folder: Path, **changes: object) -> None:
    """A lock of this process, but for the changes, that nobody holds any more."""
    folder.mkdir()
    (folder / NOTE).write_text(json.dumps(dataclasses.asdict(Owner.this()) | changes))


def test_the_second_is_told_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with held(folder):
        assert busy(folder)
        with pytest.raises(Busy, match=rf"in use by .*process {os.getpid()} on .*choose another --out"), held(folder):
            pytest.fail("it is held")
        (folder / "content").touch()
    assert not busy(folder)
    assert [file.name for file in folder.iterdir()] == ["content"]
    with held(folder):
        assert busy(folder)


def test_a_folder_that_nothing_came_into_goes(tmp_path: Path) -> None:
    with held(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    with held(tmp_path / "mine"):
        assert busy(tmp_path / "mine")
    assert (tmp_path / "mine").is_dir()


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, env=this_fastget()
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(Busy, match=f"process {other.pid} on"), held(tmp_path / "run"):
        pytest.fail("it is held")
    other.send_signal(signal.SIGKILL)
    other.wait()
    other.stdout.close()
    assert (tmp_path / "run" / NOTE).exists()
    with held(tmp_path / "run"):
        assert Owner.this().pid == json.loads((tmp_path / "run" / NOTE).read_text())["pid"]


@pytest.mark.parametrize(
    "changes", [{"started": "1"}, {"boot": "of before"}, {"boot": "of before", "pid": 1}, {"host": "a container"}]
)
def test_what_has_ended_is_not_heeded(tmp_path: Path, changes: dict[str, object]) -> None:
    """A later process of the same number, a reboot, another container on the same kernel."""
    left_by(tmp_path / "run", **({"started": "1"} | changes))
    with held(tmp_path / "run"):
        assert busy(tmp_path / "run")


def test_a_lock_that_was_being_made_is_not_heeded(tmp_path: Path) -> None:
    (tmp_path / NOTE).write_text('{"host": "ha')
    with held(tmp_path):
        assert busy(tmp_path)


def test_another_host_is_heeded_unless_told(tmp_path: Path) -> None:
    left_by(tmp_path / "run", host="node7", boot="its own", pid=77)
    with pytest.raises(Busy, match=r"process 77 on node7.*cannot see.*--set train\.lock=take"), held(tmp_path / "run"):
        pytest.fail("it may be held")
    with held(tmp_path / "run", take=True):
        assert busy(tmp_path / "run")


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with held(tmp_path / "run"), pytest.raises(Busy, match=f"process {os.getpid()}"), held(tmp_path / "run"):
        pytest.fail("it is held")
    left_by(tmp_path / "old", started="1")
    with held(tmp_path / "old"):
        assert busy(tmp_path / "old")


def test_of_many_at_once_one_holds_it(tmp_path: Path) -> None:
    inside, most, lock = 0, 0, threading.Lock()

    def enter(number: int) -> None:
        nonlocal inside, most
        for _ in range(20):
            with held(tmp_path / "run", wait=60):
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1
        entered.append(number)

    entered: list[int] = []
    threads = [threading.Thread(target=enter, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(entered), inside, most) == (6, 0, 1)
    assert not list(tmp_path.rglob(".lock*"))


@pytest.mark.parametrize("place", ["link/run", "link"])
def test_a_folder_that_can_never_be_made(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was tried for ever, without a word: a link to nowhere, a folder below /proc."""
    monkeypatch.setattr(lock, "PATIENCE", 0.05)
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "place")
    with pytest.raises(OSError, match="File exists"), held(tmp_path / place):
        pytest.fail("it cannot be")
