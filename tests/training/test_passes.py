"""The image passes of a run, counted before it is made, against those that it makes."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget.config import make_config
from fastget.data.domains import load_domains
from fastget.methods import method_of
from fastget.networks.network import Network
from fastget.planning.counts import passes_on, sizes_of
from fastget.training.engine import Engine
from fastget.training.passes import Passes, planned
from fastget.training.train import train
from tests.features.support import on_features, small_store

SHORT = {"train__max_steps": 7, "train__warmup_steps": 2, "train__eval_every": 3, "train__log_every": 1}
PAIRS = [
    {"method__name": "get"},
    {"method__name": "get", "get__prior": "plain", "get__prior_start": "uniform"},
    {"method__name": "atdoc-nc", "atdoc-nc__second_look": True},
    {"method__name": "get", "method__base": "mixmatch"},
    {"method__name": "atdoc-na", "atdoc-na__second_look": True, "method__base": "mixmatch"},
    {"method__name": "source-only", "method__base": "cdan"},
    {"method__name": "source-only"},
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of 48 rows. Not to be written to."""
    return small_store(tmp_path_factory.mktemp("features") / "small").folder


@pytest.mark.parametrize("settings", PAIRS, ids=lambda given: "-".join(map(str, given.values())))
def test_a_run_makes_the_passes_that_were_planned(
    settings: dict[str, Any], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: Counter[bool] = Counter()  # images that went through the network by whether autograd was on
    forward = Network.forward

    def count(self: Network, images: torch.Tensor) -> Any:
        looked[torch.is_inference_mode_enabled()] += len(images)
        return forward(self, images)

    monkeypatch.setattr(Network, "forward", count)
    config = on_features(root, tmp_path / "run", **SHORT, train__eval_images=20, **settings)
    plan = planned(Engine(config, 0, load_domains(config.data), torch.device("cpu")))
    train(config, quiet=True)
    logged = [json.loads(line) for line in (tmp_path / "run" / "timing.jsonl").read_text().splitlines()]
    assert sum(sum(line["image_passes"].values()) for line in logged) == plan.training
    assert plan.evaluation == 2 * 20 + 48
    assert looked[True] == plan.looked_at


def test_ssda_counts_its_lists(root: Path, tmp_path: Path) -> None:
    config = on_features(root, tmp_path / "run", data__setting="ssda", train__max_steps=10, train__warmup_steps=3)
    engine = Engine(config, 0, load_domains(config.data), torch.device("cpu"))
    plan, target = planned(engine), len(engine.target)
    assert target < 48  # the shots are not among them
    assert plan.training == 3 * (3 * (16 + 5) + 7 * (16 + 5 + 11))
    assert plan.evaluation == 2 * target
    held_out = dataclasses.replace(plan, validation=6, interim=10)
    assert held_out.evaluation == 10 + 6 + target + 6
    assert [held_out.evaluation_after(step) for step in (5, 6, 10)] == [16 + target + 6, target + 6, 0]


def visda(eval_images: int) -> Passes:
    """VisDA-2017: 152,397 source and 55,388 target images, one epoch of batches of 36, GeT as it is by default."""
    given = {"data.name": "visda2017", "train.batch_size": 36, "train.epochs": 1, "train.eval_images": eval_images}
    config = make_config(given)
    return passes_on(config, sizes_of(config, None, None))


def test_a_method_that_looks_at_the_target_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_of("get"), "extra", frozenset({"each epoch"}))
    config = make_config({"data.name": "visda2017", "train.epochs": 3})
    assert passes_on(config, sizes_of(config, None, None)).start == 3 * 55_388  # in the first, and in two more


@pytest.mark.parametrize(
    ("period", "looks"),
    [(None, [4, 6, 9]), (3, [4, 7, 10]), (5, [4, 9])],  # of the run's epochs of 3 steps; from the first adapting step
)
def test_a_methods_own_period(
    period: int | None, looks: list[int], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call's pass over the target is made where the plan has it, and counted in it."""
    looked: list[int] = []
    method = method_of("minent")
    monkeypatch.setattr(method, "extra", frozenset({"each epoch"}))
    monkeypatch.setattr(method, "period", lambda self, plan: period)
    engine = Engine(on_features(root, tmp_path / "run", method__name="minent", train__max_steps=11,
                                train__warmup_steps=4), 0, load_domains(on_features(root, tmp_path).data),
                    torch.device("cpu"))  # fmt: skip
    assert engine.plan.epoch_steps == 3
    monkeypatch.setattr(
        method, "start_epoch", lambda self, whole: looked.extend([engine.steps_done] * len(whole.index))
    )
    batches = engine.steps()
    for step in batches:
        engine.train_step(step)
    plan, images = planned(engine), len(engine.target)
    assert looked == [step for step in looks for _ in range(images)]
    assert plan.looks == tuple((step, images) for step in looks)
    assert plan.start == len(looked)
    assert [plan.looks_after(step) for step in (0, 5, 11)] == [len(looked), len(looked) - images, 0]


def test_evaluation_is_a_tenth_of_a_run_on_visda(capsys: pytest.CaptureFixture[str]) -> None:
    now, before = visda(make_config().train.eval_images), visda(0)
    assert (now.interim, before.interim, now.plan.max_steps, now.evaluations_after(0)) == (4096, 55_388, 4233, 11)
    assert now.evaluation == 10 * 4096 + 55_388
    for name, one in (("all images", before), ("a draw", now)):
        images, looked = one.training // 3, one.looked_at
        print(f"{name}: {one.words()}")
        print(f"  forward passes: {100 * one.share:.1f} % of the run is evaluation, "
              f"{100 * one.evaluation / (one.training + one.evaluation):.1f} % without the method's start, "
              f"{100 * looked / (one.training + looked):.1f} % with it counted as one")  # fmt: skip
        print(f"  images: {100 * one.evaluation / (images + looked):.1f} % of the run, "
              f"{100 * looked / (images + looked):.1f} % with the method's start")  # fmt: skip
    assert now.share <= 0.1
    assert before.share > 0.35
    said = capsys.readouterr().out
    assert "10 on 4,096 of 55,388 target images, the last on all" in said
    print(said)
