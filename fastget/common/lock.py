"""One process at a time in a folder: its lock is a file that says who holds it.

The kernel's lock on that file goes with its process, so that neither a crash nor a reboot leaves one behind. It may not
reach from host to host on a shared file system, and some have none: there the file's own words decide, by host, boot,
process and the process's start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = ".lock"
PATIENCE = 1.0  # seconds for which a folder that cannot be made may be one that others make and remove
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK)


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
    def read(cls, descriptor: int) -> Owner | None:
        """None: nobody that can be told, as where the lock was being made when its maker was killed."""
        try:
            content = json.loads(os.pread(descriptor, 1 << 16, 0))
            return cls(**{name: kind(content[name]) for name, kind in _KINDS.items()})
        except (ValueError, KeyError, TypeError):
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
    """The kernel's lock on an open file, as long as the file is open anywhere; False if another process has it, None
    where the file system has none."""
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
    descriptor = _acquire(folder, take, time.monotonic() + wait, way_out)
    try:
        for rest in folder.glob(".lock.*.part"):
            rest.unlink(missing_ok=True)  # of one that was killed; who is just trying tries again
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may have been removed, which is no reason to fail
            if _is(folder / NAME, descriptor):
                (folder / NAME).unlink()
            if made:
                folder.rmdir()
        os.close(descriptor)


def busy(folder: Path) -> bool:
    """Whether another process that can be seen from here holds the folder now."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        return _ended(descriptor)[0] is False
    finally:
        os.close(descriptor)


def _ended(descriptor: int) -> tuple[bool | None, str]:
    """Whether who made this lock has ended, None if that cannot be seen from here; and who it was."""
    free, owner = lock_file(descriptor), Owner.read(descriptor)
    if free is False:
        return False, "another process" if owner is None else str(owner)
    if owner is None or (free and owner.boot and owner.boot == _boot()):
        return True, ""  # on one host the kernel knows
    return owner.gone(), str(owner)


def _acquire(folder: Path, take: bool, until: float, way_out: str) -> int:
    """The open lock. It comes into being whole: with its owner's name in it, and locked."""
    start = time.monotonic()
    while True:
        try:
            if (descriptor := _try(folder, take, way_out, time.monotonic() - start < PATIENCE)) is not None:
                return descriptor
        except Busy:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _try(folder: Path, take: bool, way_out: str, again: bool) -> int | None:
    """None: what was there has just gone, and it is worth another try; OSError where that was tried long enough."""
    mine = folder / f".lock.{secrets.token_hex(4)}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(mine, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except (FileNotFoundError, FileExistsError):
        if not again or (folder.exists() and not folder.is_dir()):
            raise  # for good: a link to nowhere, or /proc
        return None  # who was here before has just removed the folder
    kept = False
    try:
        os.write(descriptor, json.dumps(asdict(Owner.this())).encode())
        lock_file(descriptor)
        kept = _put(mine, folder, take, way_out)
    finally:
        mine.unlink(missing_ok=True)
        if not kept:
            os.close(descriptor)
    return descriptor if kept else None


def _put(mine: Path, folder: Path, take: bool, way_out: str) -> bool:
    """Give the lock its name, where there is none or one that is left over. False: something moved, try again."""
    place = folder / NAME
    try:
        os.link(mine, place)
        return True
    except FileExistsError:
        return _replace(mine, place, take, way_out)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    if place.exists():
        return _replace(mine, place, take, way_out)
    os.rename(mine, place)  # a file system without links has no better way
    return True


def _replace(mine: Path, place: Path, take: bool, way_out: str) -> bool:
    try:
        there = os.open(place, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        gone, who = _ended(there)
        if gone is False:
            raise Busy(f"{place.parent} is in use by {who}: wait for it to end, stop it, or choose another --out")
        if gone is None and not take:
            raise Busy(
                f"{place.parent} is in use by {who}. {socket.gethostname()} cannot see whether that one still runs: if "
                f"it does not, take the folder over by {way_out}"
            )
        if not _is(place, there):
            return False
        try:
            os.replace(mine, place)
        except FileNotFoundError:
            return False
        return True
    finally:
        os.close(there)


def _is(place: Path, descriptor: int) -> bool:
    """Whether the name stands for the open file."""
    try:
        return os.path.samestat(os.stat(place), os.fstat(descriptor))
    except FileNotFoundError:
        return False


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
