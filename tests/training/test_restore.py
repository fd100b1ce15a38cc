"""Several ranks go on from one checkpoint: the one that rank 0 chose, and a rank that cannot see it is named."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fastget.common.ranks import Ranks
from fastget.runs.checkpoint import BadCheckpoint, load_checkpoint, save_checkpoint, sha256_of
from fastget.runs.folder import RunFolder
from fastget.training import resume


@dataclass(frozen=True)
class Threads(Ranks):
    """Two ranks in two threads."""

    values: list[Any] = field(default_factory=lambda: [None, None])
    meet: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=60))

    def gather(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.meet.wait()
        found = list(self.values)
        self.meet.wait()
        return found


class Engine:
    """As much of an engine as `go_on` asks for."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.steps_done = ranks, -1


@pytest.fixture(autouse=True)
def no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_state(engine: Engine, state: dict[str, Any]) -> None:
        engine.steps_done = state["step"]

    monkeypatch.setattr(resume, "load_state", load_state)


def both(act: Callable[[Ranks], Any]) -> list[Any]:
    """What each of two ranks returns, or raises."""
    found: list[Any] = [None, None]
    first = Threads(0, 2)
    ranks = [first, Threads(1, 2, first.values, first.meet)]

    def run(rank: int) -> None:
        try:
            found[rank] = act(ranks[rank])
        except ValueError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def restore(ranks: Ranks) -> int:
    engine = Engine(ranks)
    state = resume.go_on(RunFolder(Path("run"), 2), engine, lambda text: None)  # type: ignore[arg-type]
    assert state is None or state["step"] == engine.steps_done
    return engine.steps_done


def test_rank_0_decides_and_its_error_is_everyones() -> None:
    assert both(lambda ranks: ranks.decided(lambda: ranks.rank)) == [0, 0]

    def refuse() -> None:
        raise ValueError("no")

    assert [str(error) for error in both(lambda ranks: ranks.decided(refuse))] == ["no", "no"]


def test_all_ranks_go_on_from_the_same() -> None:
    assert both(restore) == [-1, -1]
    for step in (3, 6):
        save_checkpoint(Path(f"run/checkpoints/step_{step:08d}.pt"), {"step": step})
    assert both(restore) == [6, 6]
    Path("run/checkpoints/step_00000006.pt").write_bytes(b"half")
    assert both(restore) == [3, 3]
    assert Path("run/checkpoints/step_00000006.pt.damaged").exists()


@pytest.mark.parametrize("sees", ["nothing", "another"])
def test_a_rank_that_sees_other_files_is_named(sees: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on two nodes whose RUN is a disk of their own."""
    file = Path("run/checkpoints/step_00000006.pt")
    save_checkpoint(file, {"step": 6})
    save_checkpoint(Path("elsewhere.pt"), {"step": 5})

    def other_load(asked: Path) -> dict[str, Any]:
        if sees == "nothing":
            raise BadCheckpoint(f"no checkpoint {asked}")
        return load_checkpoint(Path("elsewhere.pt"))

    names: list[str] = []

    def other_digest(asked: Path) -> str:
        names.append(threading.current_thread().name)
        return sha256_of(asked if len(names) == 1 else Path("elsewhere.pt"))  # rank 0 is the first to ask

    monkeypatch.setattr(resume, "load_checkpoint", other_load)  # rank 0 reads by its CheckpointFolder
    monkeypatch.setattr(resume, "sha256_of", other_digest)
    said = [str(error) for error in both(restore)]
    assert said[0] == said[1]
    assert said[0].startswith(f"rank 1 on {socket.gethostname()} cannot go on: all ranks need the run's folder")
    assert (f"no checkpoint {file}" if sees == "nothing" else "is not the file that rank 0 sees") in said[0]
