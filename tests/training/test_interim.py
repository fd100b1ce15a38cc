"""Evaluations before the last one look at a draw of the target: the same in every run, and without a trace in it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from fastget.archive.statistics import choices
from fastget.common.errors import Interrupted
from fastget.common.ranks import Ranks
from fastget.data.domains import load_domains
from fastget.loading.sampling import fixed_draw
from fastget.report.curves import convergence
from fastget.report.read import find_runs, group
from fastget.training.build import Loaders
from fastget.training.train import train
from tests.features.support import on_features, small_store
from tests.support import assert_same_end, checkpoint, metrics
from tests.training.test_stop import ask_when_looking

FEW = 20
SETTINGS: dict[str, Any] = {"train__eval_every": 3, "train__checkpoint_every": 3, "train__keep_checkpoints": 4}
SETTINGS |= {"train__select": "entropy", "train__eval_batch_size": 8, "train__watch": 10}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of 48 rows. Not to be written to."""
    return small_store(tmp_path_factory.mktemp("features") / "small").folder


@pytest.fixture(scope="module")
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(scope="module")
def run(root: Path, said: io.StringIO, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be written to."""
    config = on_features(root, tmp_path_factory.mktemp("interim") / "run", train__eval_images=FEW, **SETTINGS)
    return train(config, console=Console(file=said, width=200)).folder


@pytest.fixture(scope="module")
def plain(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, with every evaluation on everything."""
    config = on_features(root, tmp_path_factory.mktemp("plain") / "run", train__eval_images=0, **SETTINGS)
    return train(config, quiet=True).folder


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return [line for line in metrics(folder) if "entropy" in line]


def test_it_is_said_in_the_log_and_in_the_file(run: Path, said: io.StringIO) -> None:
    *interim, last = evaluations(run)
    assert [line["step"] for line in interim] == [3, 6, 9]
    assert all((line["images"], line["of"]) == (FEW, 48) for line in interim)
    assert (last["images"], last["on_draw"]["images"]) == (48, FEW)
    assert json.loads((run / "summary.json").read_text())["scored"] == 48
    lines = said.getvalue().splitlines()
    assert [line.strip().endswith("on 20 of 48 images") for line in lines if line.startswith("  step")] == [
        True, True, True, False,
    ]  # fmt: skip
    plan = next(line for line in lines if line.startswith("plan: "))
    assert "3 on 20 of 48 target images, the last on all" in plan


def test_nothing_else_depends_on_it(run: Path, plain: Path) -> None:
    """The trajectory, the final figures; and where all images are looked at, no line tells of a draw."""
    keys = ("images", "of", "on_draw")
    assert not any(key in line for line in metrics(plain) for key in keys)
    final = {key: value for key, value in evaluations(run)[-1].items() if key not in keys}
    assert final == evaluations(plain)[-1]
    logged = [[line for line in metrics(folder) if "loss" in line] for folder in (run, plain)]
    assert logged[0] == logged[1]
    a, b = map(checkpoint, (run, plain))
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    assert torch.equal(a["rng"], b["rng"])
    assert (run / "predictions.csv").read_bytes() == (plain / "predictions.csv").read_bytes()
    assert (run / "labels.jsonl").read_bytes() == (plain / "labels.jsonl").read_bytes()  # their draw is within


@pytest.mark.parametrize("few", [48, 4096])
def test_a_small_target_is_looked_at_whole(few: int, root: Path, plain: Path, tmp_path: Path) -> None:
    config = on_features(root, tmp_path / "r", train__eval_images=few, **SETTINGS)
    assert metrics(train(config, quiet=True).folder) == metrics(plain)


def test_the_draw_does_not_depend_on_seed_or_ranks(root: Path) -> None:
    config = on_features(root, "out", train__eval_images=FEW, train__eval_batch_size=3)
    domains = load_domains(config.data)
    torch.manual_seed(5)
    before, drawn = torch.get_rng_state(), []
    for seed, world in ((0, 1), (7, 2), (1, 4)):
        loaders = [Loaders(config, seed, domains, torch.device("cpu"), Ranks(rank, world)) for rank in range(world)]
        places = [batch.index for one in loaders for batch in one.interim.batches()]
        drawn.append(np.concatenate(places).tolist())
        assert max(one.interim.stream.sampler.most_steps for one in loaders) == -(-FEW // (3 * world))  # type: ignore[union-attr]
    assert drawn[0] == drawn[1] == drawn[2] == fixed_draw(48, FEW).tolist()
    assert torch.equal(before, torch.get_rng_state())
    assert set(fixed_draw(48, 10)) < set(fixed_draw(48, FEW)) < set(fixed_draw(48, 47))
    assert len(set(drawn[0])) == FEW
    assert drawn[0] != list(range(FEW))


def test_a_resumed_run_has_the_same_bits(root: Path, run: Path) -> None:
    """Stopped in the midst of an evaluation of the draw."""
    again = {"train__eval_images": FEW, **SETTINGS}
    with pytest.MonkeyPatch.context() as patch:
        ask_when_looking(patch, "evaluation", 6)
        with pytest.raises(Interrupted, match="in the evaluation after step 6"):
            train(on_features(root, "run", **again), quiet=True)
    folder = train(on_features(root, "run", train__resume="auto", **again), quiet=True).folder
    assert_same_end(folder, run, "selected")
    assert (folder / "classes.csv").read_bytes() == (run / "classes.csv").read_bytes()


def test_a_checkpoint_is_chosen_on_the_same_images_throughout(run: Path) -> None:
    lines = [{**line, **line.get("on_draw", {})} for line in evaluations(run)]
    best = min(lines, key=lambda line: float(line["entropy"]))
    chosen = checkpoint(run, "selected")
    assert (chosen["step"], chosen["selected_by"]) == (best["step"], {"entropy": best["entropy"]})
    assert choices(evaluations(run), "accuracy")["entropy"] == best["accuracy"]


def test_the_classes_interval_holds_the_share(run: Path, plain: Path) -> None:
    """It is of all images: the draw widens it by no more than evaluations differ."""
    rows, all_rows = (list(csv.DictReader((place / "classes.csv").open(newline=""))) for place in (run, plain))
    for row, other in zip(rows, all_rows, strict=True):
        assert (row["share"], row["predicted"]) == (other["share"], other["predicted"])
        low, share, high = (float(row[name]) for name in ("low", "share", "high"))
        assert low <= share <= high


def test_the_report_says_so(run: Path, plain: Path) -> None:
    few, whole = (convergence(group(find_runs([place]))).words for place in (run, plain))
    assert "on a draw of 20 target images, the last on all of them" in few
    assert "on the whole target" in whole
