"""Runs of this version against runs of 0.1.0 and 0.2.0, to the bit, on the machine that the test runs on.

The old version is taken from the repository's history, both train on `digits`, and every tensor of final.pt is compared
under the names of today. The paper's recipe is as in 0.2.0. What was 0.1.0's default can be set by options. Where the
target lacks no class, 0.2.0's default differs from today's in gamma_Q alone.
"""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fastget.runs.checkpoint import load_checkpoint
from tests.rooms import ROOT
from tests.support import metrics

OLD = {
    "0.1.0": "68011139c581862733a016d2154f304fd94437f5",  # the last one before the seam for methods
    "0.2.0": "a1401b5299bc46558bf8679c06b9570bdaf3c332",
}
SETTINGS: dict[str, tuple[str, ...]] = {
    "uda": (),
    "pda": ("data.setting=pda",),
    "ssda": ("data.setting=ssda",),
    "imbalanced": ("data.imbalanced=true",),
}
DEFAULT_0_1 = ("get.gamma_mu=0.01", "get.gamma_pi=0.01", "get.gamma_Q=0.5", "get.prior_start=uniform",
               "get.prior_estimate=likelihood", "get.prior=plain")  # fmt: skip
REFERENCE = ("get.on_cpu=reference",)  # 0.2.0's default on a CPU rounds otherwise
SINCE = {"method.get.trust", "method.get.agreement"}  # buffers that older versions have not


class Golden(NamedTuple):
    """A run, and what it takes to have it then and today."""

    version: str
    options: tuple[str, ...] = ()
    values: tuple[str, ...] = ()  # --set, of both
    then: tuple[str, ...] = ()
    today: tuple[str, ...] = ()


RUNS = {
    **{f"0.1.0 {name}": Golden("0.1.0", values=values, today=DEFAULT_0_1) for name, values in SETTINGS.items()},
    "0.1.0 source-only": Golden("0.1.0", ("--method", "source-only")),
    **{
        f"0.2.0 paper {name}": Golden("0.2.0", ("--recipe", "paper"), values, then=REFERENCE)
        for name, values in SETTINGS.items()
    },
    "0.2.0 uda": Golden("0.2.0", then=REFERENCE, today=("get.gamma_Q=0.5",)),
}


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Version -> a folder with its code."""
    folders: dict[str, Path] = {}

    def unpack(version: str) -> Path:
        if version not in folders:
            done = subprocess.run(["git", "-C", str(ROOT), "archive", OLD[version]], capture_output=True)
            if done.returncode:
                pytest.skip(f"the history of this checkout does not reach back to {version}")
            folders[version] = tmp_path_factory.mktemp("old")
            with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
                archive.extractall(folders[version], filter="data")
        return folders[version]

    return unpack


def run(code: Path, out: Path, options: tuple[str, ...], values: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "fastget", "train", "--out", str(out), "--seeds", "0,1", *options]
    command += ["--set", "train.max_steps=120", "train.log_every=1", "train.tensorboard=false", *values]
    environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=code, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", RUNS)
def test_the_same_bits(name: str, old_code: Callable[[str], Path], tmp_path: Path) -> None:
    golden = RUNS[name]
    run(old_code(golden.version), tmp_path / "old", golden.options, golden.values + golden.then)
    run(ROOT, tmp_path / "new", golden.options, golden.values + golden.today)
    for seed in ("seed-0", "seed-1"):
        old, new = tmp_path / "old" / seed, tmp_path / "new" / seed
        assert metrics(old) == metrics(new)
        assert (old / "predictions.csv").read_bytes() == (new / "predictions.csv").read_bytes()
        # reading brings the old names up to date: get.mu -> method.get.mu, network.* as they were
        a, b = (load_checkpoint(folder / "checkpoints" / "final.pt") for folder in (old, new))
        assert set(a["model"]) - SINCE == set(b["model"]) - SINCE
        for tensor in set(a["model"]) - SINCE:
            assert torch.equal(a["model"][tensor], b["model"][tensor]), tensor
        assert torch.equal(a["rng"], b["rng"])
        moments = [{i: s["momentum_buffer"] for i, s in state["optimizer"]["state"].items()} for state in (a, b)]
        assert moments[0].keys() == moments[1].keys()
        assert all(torch.equal(moments[0][i], moments[1][i]) for i in moments[0])
