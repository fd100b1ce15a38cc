"""Runs of this version against runs of 0.1.0, to the bit, on the machine that the test runs on.

The seam for methods and the rooms changed no number: the old version is taken from the repository's history, both
train on `digits`, and every tensor of final.pt is compared under the names of today.
"""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from fastget.runs.checkpoint import load_checkpoint
from tests.rooms import ROOT
from tests.support import metrics

COMMIT = "68011139c581862733a016d2154f304fd94437f5"  # the last one before the seam
RUNS = {
    "uda": [],
    "pda": ["--setting", "pda"],
    "ssda": ["--setting", "ssda"],
    "imbalanced": ["--set", "data.imbalanced=true"],
    "source-only": ["--method", "source-only"],
    "paper": ["--recipe", "paper"],
    "extensions": ["--set", "get.prior_estimate=nearest", "get.prior_shrinkage=true", "method.ramp=linear"],
}


@pytest.fixture(scope="module")
def old_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = subprocess.run(["git", "-C", str(ROOT), "archive", COMMIT], capture_output=True)
    if done.returncode:
        pytest.skip("the history of this checkout does not reach back to 0.1.0")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def run(code: Path, out: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "fastget", "train", "--out", str(out), "--seeds", "0,1"]
    command += ["--set", "train.max_steps=120", "train.tensorboard=false", *options]
    environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=code, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_same_bits(name: str, old_version: Path, tmp_path: Path) -> None:
    run(old_version, tmp_path / "old", RUNS[name])
    today = [] if {"--recipe", "--method"} & set(RUNS[name]) else ["--recipe", "0.1"]  # GeT's default was another
    if name == "paper":  # 0.1 computed the reference's way on a CPU, which its own recipe says
        today = ["--set", "get.on_cpu=reference"]
    run(ROOT, tmp_path / "new", [*RUNS[name], *today])
    for seed in ("seed-0", "seed-1"):
        old, new = tmp_path / "old" / seed, tmp_path / "new" / seed
        assert metrics(old) == metrics(new)
        assert (old / "predictions.csv").read_bytes() == (new / "predictions.csv").read_bytes()
        # reading brings the old names up to date: get.mu -> method.get.mu, network.* as they were
        a, b = (load_checkpoint(folder / "checkpoints" / "final.pt") for folder in (old, new))
        assert set(a["model"]) == set(b["model"])
        for tensor in a["model"]:
            assert torch.equal(a["model"][tensor], b["model"][tensor]), tensor
        assert torch.equal(a["rng"], b["rng"])
        moments = [{i: s["momentum_buffer"] for i, s in state["optimizer"]["state"].items()} for state in (a, b)]
        assert moments[0].keys() == moments[1].keys()
        assert all(torch.equal(moments[0][i], moments[1][i]) for i in moments[0])
