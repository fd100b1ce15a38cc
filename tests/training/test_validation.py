"""train.select=validation: chosen by SSDA's validation list, which changes nothing else in a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastget.commands.eval import evaluate_domain
from fastget.common.ranks import Ranks
from fastget.config import Config, make_config
from fastget.data.domains import load_domains
from fastget.evaluation.score import Evaluation
from fastget.methods.get.module import GeT
from fastget.networks.preprocessing import filled
from fastget.runs.summary import SeedSummary, over_seeds, read_summary
from fastget.serving.predictor import load_predictor
from fastget.training.build import Loaders
from fastget.training.engine import Engine
from fastget.training.train import train
from tests.pictures import write_ssda
from tests.support import TINY, assert_same_end, checkpoint, cut_back, metrics, tiny

SETTINGS: dict[str, Any] = {
    "data.name": "domainnet126", "data.source": "real", "data.target": "sketch", "data.setting": "ssda",
    "data.resize": 32, "data.crop": 28, "network.name": "small", "network.weights": "none",
    "optim.backbone_lr_scale": 1.0, "train.batch_size": 12, "train.eval_every": 3, "train.threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be written to."""
    return write_ssda(tmp_path_factory.mktemp("ssda") / "data")


def config(out: str, root: Path, **settings: Any) -> Config:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return make_config({**TINY, **SETTINGS, "data.root": str(root), "train.out": out, **given})


@pytest.mark.parametrize("shots", [1, 3])
def test_the_best_on_the_validation_list_is_kept(root: Path, shots: int) -> None:
    given = config("sel", root, data__shots=shots, train__select="validation")
    result = train(given, quiet=True)
    lines = [line for line in metrics(result.folder) if "accuracy" in line]
    assert [line["step"] for line in lines] == [3, 6, 9, 12]
    best = max(lines, key=lambda line: line["validation_mean_class_accuracy"])  # the first of equals
    state = checkpoint(result.folder, "selected")
    assert state["step"] == best["step"]
    assert state["selected_by"] == {"validation": best["validation_mean_class_accuracy"]}
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary["accuracy"] == lines[-1]["accuracy"]  # the headline is the final model on the target
    assert summary["validation"] == {
        "accuracy": lines[-1]["validation_accuracy"],
        "mean_class_accuracy": lines[-1]["validation_mean_class_accuracy"],
        "images": 9,
    }
    assert summary["images"] == {"source": 36, "target": 18, "labelled_target": 3 * shots, "validation": 9}
    assert read_summary(result.folder) == result.summary
    assert json.loads((result.folder / "split.json").read_text())["lists"]["validation"]["images"] == 9
    # The figures are those of the list's own images, cropped at the centre.
    images = load_domains(given.data).validation
    assert images
    for name, line in (("selected", best), ("final", lines[-1])):
        predictor = load_predictor(result.folder / "checkpoints" / f"{name}.pt")
        found, _ = evaluate_domain(predictor, images, given.data, 4)
        assert found.mean_class_accuracy == pytest.approx(line["validation_mean_class_accuracy"])


def test_a_middle_one_may_be_the_best(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([0.2, 0.6, 0.6, 0.1])
    evaluate = Engine.evaluate

    def told(self: Engine, *given: Any) -> Evaluation:
        result = evaluate(self, *given)
        assert result.validation
        value = next(figures)
        told_of = dataclasses.replace(result.validation, accuracy=1 - value, mean_class_accuracy=value)
        return dataclasses.replace(result, validation=told_of)

    monkeypatch.setattr(Engine, "evaluate", told)
    folder = train(config("told", root, train__select="validation"), quiet=True).folder
    state = checkpoint(folder, "selected")
    assert (state["step"], state["selected_by"]) == (6, {"validation": 0.6})


def test_it_is_never_trained_on(root: Path) -> None:
    """A run with the list and one without it: the same losses, the same model."""
    bare = write_ssda(Path("bare"))
    (bare / "txt" / "multi" / "validation_target_images_sketch_3.txt").unlink()
    with_it, without = (train(config(name, r), quiet=True) for name, r in (("with", root), ("without", bare)))
    lines = metrics(with_it.folder)
    assert any("validation_accuracy" in line for line in lines)
    shorter = [{k: v for k, v in line.items() if not k.startswith("validation")} for line in lines]
    assert shorter == metrics(without.folder)
    a, b = (checkpoint(result.folder)["model"] for result in (with_it, without))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert without.summary.validation is None
    assert "validation" not in without.summary.images
    assert not (with_it.folder / "checkpoints" / "selected.pt").exists()


def test_no_stream_of_the_training_holds_it(root: Path) -> None:
    given = config("x", root)
    domains = load_domains(given.data)
    assert domains.validation
    loaders = Loaders(filled(given), 0, domains, torch.device("cpu"), Ranks())
    assert loaders.shots
    for loader in (loaders.source, loaders.target, loaders.shots):
        assert not set(loader.stream.images.paths) & set(domains.validation.paths)


def test_resume_goes_on_to_the_same_end_and_the_same_choice(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"train__select": "validation", "train__checkpoint_every": 5}
    whole = train(config("whole", root, **settings), quiet=True)
    steps = 0
    update = GeT.update

    def stop_in_the_middle(self: GeT, *args: Any, **kwargs: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 4:  # step 8, after the checkpoint of step 5 and the choice at step 6
            raise KeyboardInterrupt
        update(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(GeT, "update", stop_in_the_middle)
        with pytest.raises(KeyboardInterrupt):
            train(config("part", root, **settings), quiet=True)
    part = train(config("part", root, train__resume="auto", **settings), quiet=True)
    assert part.summary == whole.summary
    assert_same_end(part.folder, whole.folder, "selected")


def test_what_was_best_before_a_stop_is_remembered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing after the stop is as good: the checkpoint from before it stays."""
    value = 0.9
    evaluate = Engine.evaluate

    def told(self: Engine, *given: Any) -> Evaluation:
        result = evaluate(self, *given)
        assert result.validation
        return dataclasses.replace(result, validation=dataclasses.replace(result.validation, mean_class_accuracy=value))

    monkeypatch.setattr(Engine, "evaluate", told)
    folder = train(config("run", root, train__select="validation", train__checkpoint_every=6), quiet=True).folder
    cut_back(folder, 6)
    value = 0.5
    train(config("run", root, train__select="validation", train__checkpoint_every=6, train__resume="auto"), quiet=True)
    state = checkpoint(folder, "selected")
    assert (state["step"], state["selected_by"]) == (3, {"validation": 0.9})


def test_ranks_share_the_list(root: Path) -> None:
    given = config("x", root)
    domains = load_domains(given.data)
    shares = []
    for rank in range(2):
        loader = Loaders(filled(given), 0, domains, torch.device("cpu"), Ranks(rank, 2)).validation
        assert loader
        shares.append(np.concatenate([batch.index for batch in loader.batches()]).tolist())
    assert [*shares[0], *shares[1]] == list(range(9))
    assert [len(share) for share in shares] == [4, 5]


def test_over_seeds(root: Path) -> None:
    part = train(config("x", root), quiet=True).summary
    assert isinstance(part, SeedSummary)
    parts = [dataclasses.replace(part, validation={"accuracy": a, "mean_class_accuracy": a / 2, "images": 9})
             for a in (0.4, 0.6)]  # fmt: skip
    found = over_seeds(parts).validation
    assert found == pytest.approx({"accuracy": 0.5, "mean_class_accuracy": 0.25, "images": 9})
    assert over_seeds([dataclasses.replace(part, validation=None)] * 2).validation is None


def test_what_is_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = train(config("shown", root, train__tensorboard=True)).folder
    shown = [line for line in capsys.readouterr().out.splitlines() if "target accuracy" in line]
    assert len(shown) == 4
    assert all("   validation " in line for line in shown)
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert "validation/mean_class_accuracy" in events.Tags()["scalars"]


def test_refusals(root: Path, tmp_path: Path) -> None:
    for setting in ("uda", "pda"):
        with pytest.raises(ValueError, match=rf"train\.select=validation .* data\.setting is {setting}: use --setting"):
            config("x", Path("nowhere"), data__setting=setting, train__select="validation")
    with pytest.raises(ValueError, match=r"needs a validation list, and sketch has none: expected validation_target"):
        train(config("x", root, data__shots=2, train__select="validation"), quiet=True)
    with pytest.raises(ValueError, match="needs a validation list, and handwritten has none"):
        train(tiny("x", data__setting="ssda", train__select="validation"), quiet=True)
    assert not (tmp_path / "x").exists()
