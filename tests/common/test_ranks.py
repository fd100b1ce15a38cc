"""Two gloo ranks with half the batch each follow one rank with all of it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget.common.ranks import Ranks, Vote
from fastget.data.domains import load_domains
from fastget.networks.preprocessing import filled
from fastget.runs.checkpoint import load_checkpoint
from fastget.selftest.engine import steps
from fastget.training.build import Loaders
from fastget.training.engine import Engine
from tests.commandline import Said
from tests.common.float64 import RUNS, SOME, STEPS
from tests.forks import as_ranks
from tests.pictures import this_fastget
from tests.support import TINY, metrics, tiny

# Sums in another order. Where ranks agree, 24 steps differ by some 1e-15; without one all-reduce by 2e-5 at once.
WITHIN = 1e-9


def settings_of(given: dict[str, Any]) -> list[str]:
    """As --set takes them."""
    return [f"{key.replace('__', '.')}={str(value).lower()}" for key, value in {**TINY, **given}.items()]


def same(one: Path, other: Path) -> None:
    """The losses of two runs, and all that their networks and methods hold."""
    lines = metrics(one), metrics(other)
    assert [line["step"] for line in lines[0]] == [line["step"] for line in lines[1]]
    for a, b in zip(*lines, strict=True):
        for name in a:
            if name.startswith("loss"):
                assert a[name] == pytest.approx(b[name], rel=WITHIN, abs=1e-14), (one.name, a["step"], name)
    models = [load_checkpoint(folder / "checkpoints" / "final.pt")["model"] for folder in (one, other)]
    assert models[0].keys() == models[1].keys()
    for name in models[0]:
        torch.testing.assert_close(
            models[0][name], models[1][name], rtol=WITHIN, atol=WITHIN, msg=f"{one.name}: {name}"
        )


def in_float64(count: int, folder: Path, *names: str) -> Said:
    """Runs of so many ranks; one has a process of its own too, in which nothing has made a tensor of another type."""
    codes, said = as_ranks(count, folder, *names, module="tests.common.float64")
    assert codes == [0] * count, said.words
    return said


def cut_at(step: int, run: Path, folder: Path) -> None:
    """A copy that goes on from a step's checkpoint."""
    shutil.copytree(run, folder)
    for file in (folder / "summary.json", *(folder / "checkpoints").glob("*.pt")):
        if file.name != f"step_{step:08d}.pt":
            file.unlink()


Runs = Callable[[int], Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """How many ranks -> the folder of their runs in float64: a group of ranks is started once. Not to be written to."""
    folders: dict[int, Path] = {}

    def of_ranks(count: int) -> Path:
        if count not in folders:
            folders[count] = folder = tmp_path_factory.mktemp(f"{count}-ranks")
            names = ["get", "memory", *SOME]
            in_float64(count, folder, *names)
        return folders[count]

    return of_ranks


@pytest.mark.parametrize("name", ["get", "memory", *SOME])
def test_two_ranks_follow_one(name: str, runs: Runs) -> None:
    same(runs(2) / name, runs(1) / name)
    model = load_checkpoint(runs(2) / name / "checkpoints" / "final.pt")["model"]
    assert model["network.bottleneck.0.weight"].dtype == torch.float64  # or it would show less
    if name == "get":
        assert 0 < model["method.get.agreement"][0] < 1  # both ranks' votes are in the start of the prior
        assert model["method.get.mu"].dtype == torch.float64


def test_two_ranks_follow_one_by_every_method_on_every_base(tmp_path: Path) -> None:
    names = [name for name in RUNS if name not in ("get", "memory", *SOME)]
    for count in (1, 2):
        in_float64(count, tmp_path / f"{count}", *names)
    for name in names:
        same(tmp_path / "2" / name, tmp_path / "1" / name)


def test_two_ranks_as_a_user_starts_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "fastget",
               "train", "--out", str(tmp_path / "run"), "--set", *settings_of(STEPS)]  # fmt: skip
    environment = {**this_fastget(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "predictions.csv").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 1 + 1797  # no image twice, none left out
    assert done.stdout.count("saved in") == 1  # rank 0 alone prints
    verdict = json.loads((tmp_path / "run" / "summary.json").read_text())["verdict"]
    said = " ".join(done.stdout.split())
    assert [said.count(f"verdict: {one['text']}") for one in verdict] == [1] * len(verdict) != []
    config = tiny("x", **STEPS)
    one = Engine(config, 0, load_domains(config.data), torch.device("cpu"))
    losses = steps(one, one.plan.warmup_steps)  # float32 has not drifted yet, and no argmax fallen otherwise
    assert [line["loss"] for line in metrics(tmp_path / "run")[: len(losses)]] == pytest.approx(losses, rel=1e-4)


def test_a_run_of_two_ranks_goes_on_with_one(runs: Runs, tmp_path: Path) -> None:
    cut_at(12, runs(2) / "get", tmp_path / "get")
    in_float64(1, tmp_path, "get")
    same(tmp_path / "get", runs(2) / "get")


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_a_memory_that_ranks_share_goes_on_with_more_or_fewer(
    first: int, second: int, runs: Runs, tmp_path: Path
) -> None:
    """A checkpoint holds all of it, whoever kept which part."""
    cut_at(6, runs(first) / "memory", tmp_path / "memory")
    shown = in_float64(second, tmp_path, "memory").words
    assert "going on from step 6" in shown
    assert shown.count("ATDOC-NA keeps 1,797 x (256 + 10) numbers in float32: ") == 1  # rank 0 alone says it
    assert ("on each of 2 ranks" in shown) == (second == 2)
    same(tmp_path / "memory", runs(first) / "memory")
    assert len(load_checkpoint(tmp_path / "memory" / "checkpoints" / "final.pt")["model"]["method.memory_f"]) == 1797


def test_two_ranks_resume_to_the_bit_with_statistics_of_their_own(tmp_path: Path) -> None:
    """Batch-norm's are each rank's, and a second look in evaluation mode trains on them."""
    given = {"network.bottleneck_norm": True, "method.name": "atdoc-na", "atdoc-na.second_look": True,
             "method.weight": 1, "train.log_every": 1, "train.checkpoint_every": 6, "train.resume": "auto"}  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def go(out: Path) -> Said:
        codes, said = as_ranks(2, "train", "--out", out, "--set", *settings_of(given))
        assert codes == [0, 0], said.words
        return said

    go(whole)
    cut_at(6, whole, cut)
    assert "going on from step 6" in go(cut).words
    assert metrics(cut) == metrics(whole)
    a, b = (load_checkpoint(folder / "checkpoints" / "final.pt") for folder in (whole, cut))
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    own = [statistics["bottleneck.1.running_mean"] for statistics in a["statistics"]]
    assert not torch.equal(*own)  # or the test would show nothing


def test_the_union_of_the_ranks_batches_is_the_batch() -> None:
    config = filled(tiny("x"))
    engine = Engine(config, 0, load_domains(config.data), torch.device("cpu"))
    loaders = engine.loaders
    for loader, role in ((loaders.source, "source"), (loaders.target, "target")):
        whole = loader.stream.sampler
        halves = []
        for rank in range(2):
            part = Loaders(config, 0, engine.domains, engine.device, Ranks(rank, 2))
            halves.append(part.training(role, config.train.batch_size).stream.sampler)
        for step in range(5):
            assert [i for half in halves for i in half(step).index.tolist()] == whole(step).index.tolist()


def test_a_batch_that_cannot_be_shared() -> None:
    codes, said = as_ranks(2, "train", "--set", *settings_of({"train.batch_size": 15}))
    assert codes == [2, 2]
    assert "multiple of 2" in said.words


class _Two:
    """A second rank that says what it is told."""

    def __init__(self, patch: pytest.MonkeyPatch, others: list[bool]) -> None:
        self.others = others
        patch.setattr("torch.distributed.all_reduce", self.add)

    def add(self, total: torch.Tensor) -> None:
        total += float(self.others.pop(0))


def test_a_vote_is_told_one_call_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no rank waits for its device between two batches."""
    _Two(monkeypatch, [False, True, False, False])
    vote = Vote(Ranks(0, 2), torch.device("cpu"))
    assert [vote(flag) for flag in (False, False, False, True)] == [False, False, True, False]
    alone = Vote(Ranks(), torch.device("cpu"))
    assert [alone(flag) for flag in (False, True)] == [False, True]
