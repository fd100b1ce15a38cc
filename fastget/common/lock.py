"""One process at a time in a folder, and who that is.

The lock is filelock's: the kernel's on a file, which goes with its process, so that neither a crash nor a reboot leaves
one behind; on a file system that has none, a file that is there. Beside it lies its owner's note, which is ours: the
library names nobody. The kernel's lock may not reach from host to host on a shared file system. There the note decides,
by host, boot, process and the process's start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

LOCK, NOTE = ".lock", ".lock.json"
PATIENCE = 1.0  # seconds for which a folder that cannot be made may be one that others make and remove
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


class Busy(ValueError):
    """Another process holds what is asked for; the text names it."""


@dataclass(frozen=True)
class Owner:
    """A process, told apart from every other of any host, before and after a reboot."""

    host: str
    boot: str  # empty: the system does not say
    pid: int
    started: str  # in the kernel's ticks since the boot
    since: str
    command: str

    @classmethod
    def this(cls) -> Owner:
        words = " ".join(["fastget", *sys.argv[1:3]])
        return cls(socket.gethostname(), _boot(), os.getpid(), _started(os.getpid()), time.strftime("%F %T"), words)

    @classmethod
    def read(cls, folder: Path) -> Owner | None:
        """None if the owner is unknown, as where it was killed while it wrote its note."""
        try:
            content = json.loads((folder / NOTE).read_bytes())
            return cls(**{name: kind(content[name]) for name, kind in _KINDS.items()})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def gone(self) -> bool | None:
        """Whether the process has ended; None if that cannot be seen from here."""
        if self.boot and self.boot == _boot():
            return _started(self.pid) != self.started
        if self.host != socket.gethostname():
            return None
        return True if self.boot else not _exists(self.pid)

    def __str__(self) -> str:
        return f"`{self.command}` (process {self.pid} on {self.host}, since {self.since})"


_KINDS = {"host": str, "boot": str, "pid": int, "started": str, "since": str, "command": str}


def lock_file(descriptor: int) -> bool | None:
    """The kernel's lock on an open file, as long as it is open in any process, which filelock does not offer; False if
    another has it, None where the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


@contextmanager
def held(
    folder: Path,
    *,
    take: bool = False,  # a process of another host, which cannot be seen from here, counts as gone
    made: bool = False,  # the folder was made for this, and goes again if nothing comes into it
    wait: float = 0,  # seconds for which another process is waited for
    way_out: str = "--set train.lock=take",
) -> Iterator[None]:
    """Hold a folder, which is made if it is not there. Raises Busy, or OSError if it cannot be written."""
    made = made or not folder.exists()
    lock, mine = _acquire(folder, take, wait, way_out), Owner.this()
    try:
        (folder / NOTE).write_text(json.dumps(asdict(mine)), encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may have been removed, which is no reason to fail
            if Owner.read(folder) in (mine, None):  # or another host has taken it over
                for name in (NOTE, LOCK):  # while the lock is held: who waits for it looks whether the name is there
                    (folder / name).unlink(missing_ok=True)
            if made:
                folder.rmdir()
        lock.release()


def busy(folder: Path) -> bool:
    """Whether another process that can be seen from here holds the folder now."""
    if not (folder / LOCK).exists():
        return False
    try:
        lock = _kind(folder)(folder / LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        owner = Owner.read(folder)
        return owner is None or owner.gone() is False
    except OSError:
        return False
    lock.release()
    return False


def _acquire(folder: Path, take: bool, wait: float, way_out: str) -> BaseFileLock:
    start = time.monotonic()
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = _kind(folder)(folder / LOCK)
            lock.acquire(timeout=wait, poll_interval=0.05)
            break
        except (FileNotFoundError, FileExistsError):  # who was here before has just removed the folder
            if time.monotonic() - start > PATIENCE or (folder.exists() and not folder.is_dir()):
                raise  # for good: a link to nowhere, or /proc
        except Timeout as error:
            owner = Owner.read(folder)
            if owner is None or isinstance(lock, FileLock):  # the kernel knows who is there
                raise _busy(folder, owner, False, way_out) from error
            if owner.gone() is False or not (owner.gone() or take):
                raise _busy(folder, owner, owner.gone() is None, way_out) from error
            (folder / LOCK).unlink(missing_ok=True)
    owner = Owner.read(folder)
    if isinstance(lock, FileLock) and owner is not None and owner.gone() is None and not take:
        lock.release()
        raise _busy(folder, owner, True, way_out)
    return lock


def _kind(folder: Path) -> type[BaseFileLock]:
    """The kernel's lock, or a file's being there where the folder's file system has no other."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        return SoftFileLock if lock_file(probe.fileno()) is None else FileLock


def _busy(folder: Path, owner: Owner | None, unseen: bool, way_out: str) -> Busy:
    who = "another process" if owner is None else str(owner)
    if not unseen:
        return Busy(f"{folder} is in use by {who}: wait for it to end, stop it, or choose another --out")
    return Busy(
        f"{folder} is in use by {who}. {socket.gethostname()} cannot see whether that one still runs: if it does not, "
        f"take the folder over by {way_out}"
    )


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """The start of a process, by which it is told from a later one of the same number; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
