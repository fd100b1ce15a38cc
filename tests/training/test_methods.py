"""Every registered method in every setting: trained, stopped, resumed to the bit."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget import methods
from fastget.runs.checkpoint import load_checkpoint
from fastget.training.train import train
from tests.support import metrics, tiny

SETTINGS: dict[str, dict[str, Any]] = {
    "uda": {},
    "pda": {"data__setting": "pda"},
    "ssda": {"data__setting": "ssda"},
    "imbalanced": {"data__imbalanced": True},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", methods.names())
def test_a_run_that_was_cut_off_ends_the_same(method: str, setting: str, tmp_path: Path) -> None:
    given = {"method__name": method, "train__checkpoint_every": 4, "train__keep_checkpoints": 3, **SETTINGS[setting]}
    whole = train(tiny("whole", **given), quiet=True)
    assert whole.summary.accuracy is not None
    assert (whole.summary.method, whole.summary.steps) == (method, 12)
    assert all(torch.isfinite(torch.tensor(line["loss"])) for line in metrics(whole.folder) if "loss" in line)
    cut = Path(shutil.copytree(whole.folder, tmp_path / "cut"))
    for name in ("summary.json", "predictions.csv", "checkpoints/final.pt", "checkpoints/step_00000012.pt"):
        (cut / name).unlink()
    again = train(tiny(cut, **given, train__resume="auto"), quiet=True)
    assert metrics(cut) == metrics(whole.folder)
    assert again.summary == whole.summary
    a, b = (load_checkpoint(folder / "checkpoints" / "final.pt")["model"] for folder in (whole.folder, cut))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
