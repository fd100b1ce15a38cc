"""Every method on every base model in every setting: trained, stopped, resumed to the bit; or refused with a reason.

A new method or base model is covered by being registered.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget import bases, methods
from fastget.config import make_config
from fastget.training.train import train
from tests.support import assert_same_end, cut_back, metrics, reason_against, tiny

SETTINGS: dict[str, dict[str, Any]] = {
    "uda": {},
    "pda": {"data__setting": "pda"},
    "ssda": {"data__setting": "ssda"},
    "one shot": {"data__setting": "ssda", "data__shots": 1},
    "imbalanced": {"data__imbalanced": True},
    "imbalanced ssda": {"data__setting": "ssda", "data__imbalanced": True},
}
ALWAYS = ("uda", "pda", "ssda", "imbalanced")  # the other two where a method runs in ssda alone
EVERY = [(method, base, setting) for base in bases.names() for method in methods.names() for setting in SETTINGS]


def reason(method: str, base: str, setting: str) -> str | None:
    return reason_against(method, base, SETTINGS[setting].get("data__setting", "uda"))


OFFERED = [
    triple
    for triple in EVERY
    if reason(*triple) is None and (triple[2] in ALWAYS or methods.settings_of(triple[0]).runs_in == ("ssda",))
]
REFUSED = [triple for triple in EVERY if reason(*triple) is not None]


@pytest.mark.parametrize(("method", "base", "setting"), OFFERED)
def test_a_run_that_was_cut_off_ends_the_same(method: str, base: str, setting: str, tmp_path: Path) -> None:
    given = {"method__name": method, "method__base": base, **SETTINGS[setting], "train__max_steps": 9}
    given |= {"train__checkpoint_every": 3, "train__keep_checkpoints": 3, "train__eval_every": 9}
    whole = train(tiny("whole", **given), quiet=True)
    assert whole.summary.accuracy is not None
    assert (whole.summary.method, whole.summary.base, whole.summary.steps) == (method, base, 9)
    figures = [value for line in metrics(whole.folder) for value in line.values() if value is not None]
    assert torch.isfinite(torch.tensor(figures)).all()
    cut = Path(shutil.copytree(whole.folder, tmp_path / "cut"))
    again = train(tiny(cut_back(cut, 6), **given, train__resume="auto"), quiet=True)
    assert again.summary == whole.summary
    assert_same_end(cut, whole.folder)


@pytest.mark.parametrize(("method", "base", "setting"), REFUSED)
def test_what_does_not_go_together_is_told_at_once(method: str, base: str, setting: str) -> None:
    """By the configuration: nothing has been loaded yet."""
    given = {key.replace("__", "."): value for key, value in SETTINGS[setting].items()}
    with pytest.raises(ValueError, match=f"method.name={method} .*") as error:
        make_config({"method.name": method, "method.base": base, **given})
    assert str(error.value) == reason(method, base, setting)
    assert any(way in str(error.value) for way in ("choose method.base=", "Use --setting "))


def test_what_the_paper_prints_is_offered() -> None:
    regularisers = {"source-only", "minent", "bnm", "mcc", "pl", "atdoc-nc", "atdoc-na", "get"}
    beyond = {"dann", "safn", "daln", "scda", "alpha-power"}
    offered = {base: {m for m, b, setting in OFFERED if b == base and setting == "uda"} for base in bases.names()}
    assert offered["plain"] >= regularisers | beyond
    assert offered["cdan"] >= regularisers | beyond
    assert offered["mixmatch"] == {"source-only", "pl", "atdoc-nc", "atdoc-na", "get"}
    assert {(base, setting) for m, base, setting in OFFERED if m == "shot"} == {
        ("plain", "uda"), ("plain", "pda"), ("plain", "imbalanced")
    }  # fmt: skip
    assert {(base, setting) for m, base, setting in OFFERED if m == "aad"} == {
        ("plain", "uda"),
        ("plain", "imbalanced"),
    }
    assert {(base, setting) for m, base, setting in OFFERED if m == "mme"} == {
        ("plain", "ssda"), ("plain", "one shot"), ("plain", "imbalanced ssda")
    }  # fmt: skip
