"""Two gloo ranks with half the batch each follow one rank with all of it."""

import json
import shutil
import subprocess
import sys
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
from tests.common.float64 import SOME
from tests.pictures import this_fastget
from tests.support import PAIRS, TINY, metrics, tiny

STEPS = {**TINY, "train.max_steps": 24, "train.log_every": 1, "train.eval_every": 12}
# Sums in another order. Where ranks agree, 24 steps differ by some 1e-15; without one all-reduce by 2e-5 at once.
WITHIN = 1e-9


def torchrun(out: Path, ranks: int, *extra: str, module: str = "fastget") -> subprocess.CompletedProcess[str]:
    settings = [f"{key}={str(value).lower()}" for key, value in STEPS.items()]
    return start(ranks, module, "train", "--out", str(out), "--set", *settings, *extra)


def start(ranks: int, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*launcher, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**this_fastget(), "OMP_NUM_THREADS": "1"})


def in_float64(out: Path, ranks: int, *extra: str) -> Path:
    done = torchrun(out, ranks, *extra, module="tests.common.float64")
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, in float64. Not to be written to."""
    return in_float64(tmp_path_factory.mktemp("ranks") / "two", 2)


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert [line["step"] for line in one] == [line["step"] for line in other]
    for a, b in zip(one, other, strict=True):
        for name in a:
            if name.startswith("loss"):
                assert a[name] == pytest.approx(b[name], rel=WITHIN, abs=1e-14), (a["step"], name)


def test_two_ranks_follow_one(two: Path, tmp_path: Path) -> None:
    one = in_float64(tmp_path / "one", 1)
    same(metrics(two), metrics(one))
    a, b = (load_checkpoint(folder / "checkpoints" / "final.pt")["model"] for folder in (two, one))
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=WITHIN, atol=WITHIN)
    assert 0 < a["method.get.agreement"][0] < 1  # both ranks' votes are in the start of the prior, and in the trust
    assert a["method.get.mu"].dtype == a["network.classifier.weight"].dtype == torch.float64  # or it would show less


@pytest.mark.parametrize("which", ["some", pytest.param("every", marks=pytest.mark.slow)])
def test_two_ranks_follow_one_by_every_method_on_every_base(which: str, tmp_path: Path) -> None:
    for ranks in (2, 1):
        done = start(ranks, "tests.common.float64", which, str(tmp_path / str(ranks)))
        assert done.returncode == 0, done.stderr
    for method, base in PAIRS if which == "every" else SOME:
        two, one = (tmp_path / str(ranks) / f"{method}-{base}" for ranks in (2, 1))
        same(metrics(two), metrics(one))
        a, b = (load_checkpoint(folder / "checkpoints" / "final.pt")["model"] for folder in (two, one))
        assert a.keys() == b.keys()
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=WITHIN, atol=WITHIN, msg=f"{method} on {base}: {name}")


def test_two_ranks_as_a_user_starts_them(tmp_path: Path) -> None:
    done = torchrun(tmp_path / "run", 2)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "predictions.csv").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 1 + 1797  # no image twice, none left out
    assert done.stdout.count("saved in") == 1  # rank 0 alone prints
    verdict = json.loads((tmp_path / "run" / "summary.json").read_text())["verdict"]
    said = " ".join(done.stdout.split())
    assert [said.count(f"verdict: {one['text']}") for one in verdict] == [1] * len(verdict) != []
    config = tiny("x", **{key.replace(".", "__"): value for key, value in STEPS.items()})
    one = Engine(config, 0, load_domains(config.data), torch.device("cpu"))
    losses = steps(one, one.plan.warmup_steps)  # float32 has not drifted yet, and no argmax fallen otherwise
    assert [line["loss"] for line in metrics(tmp_path / "run")[: len(losses)]] == pytest.approx(losses, rel=1e-4)


def test_a_run_of_two_ranks_goes_on_with_one(two: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(two, tmp_path / "run"))
    for name in ("summary.json", "checkpoints/final.pt", "checkpoints/step_00000024.pt"):
        (folder / name).unlink()
    in_float64(folder, 1, "train.resume=auto")
    same(metrics(folder), metrics(two))
    assert load_checkpoint(folder / "checkpoints" / "final.pt")["step"] == 24


@pytest.mark.parametrize(("first", "second"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
def test_a_memory_that_ranks_share_goes_on_with_more_or_fewer(first: int, second: int, tmp_path: Path) -> None:
    """A checkpoint holds all of it, whoever kept which part."""
    given = ["method.name=atdoc-na", "method.weight=1", "train.max_steps=12", "train.warmup_steps=2"]
    given += ["train.checkpoint_every=6", "train.resume=auto"]
    whole = in_float64(tmp_path / "whole", first, *given)
    cut = Path(shutil.copytree(whole, tmp_path / "cut"))
    for name in ("summary.json", "checkpoints/final.pt", "checkpoints/step_00000012.pt"):
        (cut / name).unlink()
    done = torchrun(cut, second, *given, module="tests.common.float64")
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "going on from step 6" in shown
    assert shown.count("ATDOC-NA keeps 1,797 x (256 + 10) numbers in float32: ") == 1  # rank 0 alone says it
    assert ("on each of 2 ranks" in shown) == (second == 2)
    same(metrics(cut), metrics(whole))
    a, b = (load_checkpoint(folder / "checkpoints" / "final.pt")["model"] for folder in (whole, cut))
    for name in ("method.memory_f", "method.memory_q"):
        assert len(a[name]) == 1797
        torch.testing.assert_close(a[name], b[name], rtol=WITHIN, atol=WITHIN)


def test_two_ranks_resume_to_the_bit_with_statistics_of_their_own(tmp_path: Path) -> None:
    """Batch-norm's are each rank's, and a second look in evaluation mode trains on them."""
    given = ["network.bottleneck_norm=true", "method.name=atdoc-na", "atdoc-na.second_look=true", "method.weight=1"]
    given += ["train.max_steps=12", "train.checkpoint_every=6", "train.resume=auto"]
    whole = tmp_path / "whole"
    done = torchrun(whole, 2, *given)
    assert done.returncode == 0, done.stderr
    cut = Path(shutil.copytree(whole, tmp_path / "cut"))
    for name in ("summary.json", "checkpoints/final.pt", "checkpoints/step_00000012.pt"):
        (cut / name).unlink()
    done = torchrun(cut, 2, *given)
    assert done.returncode == 0, done.stderr
    assert "going on from step 6" in done.stdout
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


def test_a_batch_that_cannot_be_shared(tmp_path: Path) -> None:
    done = torchrun(tmp_path / "odd", 2, "train.batch_size=15")
    assert done.returncode != 0
    assert "multiple of 2" in " ".join(done.stderr.split())


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
