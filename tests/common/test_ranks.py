"""Two gloo ranks with half the batch each follow one rank with all of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget.common.ranks import Ranks
from fastget.data.find import load_domains
from fastget.runs.checkpoint import load_checkpoint
from fastget.training.build import Loaders
from fastget.training.engine import Engine
from fastget.training.train import train
from tests.support import TINY, metrics, tiny

STEPS = {**TINY, "train.max_steps": 24, "train.log_every": 1, "train.eval_every": 12}


def torchrun(out: Path, ranks: int, *extra: str) -> subprocess.CompletedProcess[str]:
    settings = [f"{key}={str(value).lower()}" for key, value in STEPS.items()]
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        "-m",
        "fastget",
    ]
    command = [*launcher, "train", "--out", str(out), "--set", *settings, *extra]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def same(one: list[dict[str, Any]], other: list[dict[str, Any]], within: float) -> None:
    assert [line["step"] for line in one] == [line["step"] for line in other]
    for a, b in zip(one, other, strict=True):
        for name in ("loss", "loss_source", "loss_g", "loss_f"):
            if name in a:
                assert a[name] == pytest.approx(b[name], abs=within), (a["step"], name)


def test_two_ranks_follow_one(tmp_path: Path) -> None:
    done = torchrun(tmp_path / "two", 2)
    assert done.returncode == 0, done.stderr
    one = train(tiny("one", **{key.replace(".", "__"): value for key, value in STEPS.items()}), quiet=True)
    same(metrics(tmp_path / "two"), metrics(one.folder), within=1e-5)
    a, b = (load_checkpoint(f / "checkpoints" / "final.pt")["model"] for f in (tmp_path / "two", one.folder))
    for name in ("method.get.mu", "method.get.pi", "method.get.mu_f"):
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-5)
    lines = (tmp_path / "two" / "predictions.csv").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 1 + 1797  # no image twice, none left out
    assert done.stdout.count("saved in") == 1  # rank 0 alone prints


def test_a_run_of_two_ranks_goes_on_with_one(tmp_path: Path) -> None:
    assert torchrun(tmp_path / "two", 2).returncode == 0
    folder = tmp_path / "two"
    for name in ("summary.json", "checkpoints/final.pt", "checkpoints/step_00000024.pt"):
        (folder / name).unlink()
    whole = metrics(folder)
    settings = {key.replace(".", "__"): value for key, value in STEPS.items()}
    train(tiny(folder, **settings, train__resume="auto"), quiet=True)
    same(metrics(folder), whole, within=1e-5)


def test_the_union_of_the_ranks_batches_is_the_batch() -> None:
    config = tiny("x")
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
