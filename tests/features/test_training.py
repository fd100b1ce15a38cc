"""Training on features: what a frozen backbone gives, under every setting and method, resumed to the bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import fastget
from fastget import methods
from fastget.commands.main import main
from fastget.data.domains import load_domains
from fastget.data.feature_store import Store
from fastget.features.make import make_features
from fastget.runs.checkpoint import load_checkpoint
from fastget.serving.predictor import load_predictor
from fastget.training.engine import Engine
from fastget.training.resume import load_state, state_of
from tests.features.support import on_features, small_store
from tests.support import fitting, metrics

FROZEN: dict[str, Any] = {
    "data.resize": 28,
    "data.crop": 28,
    "data.flip": False,
    "network.bottleneck_norm": True,
    "optim.backbone_lr_scale": 0.0,
    "optim.lr": 0.01,
    "train.batch_size": 64,
    "train.max_steps": 50,
    "train.warmup_steps": 20,
    "train.threads": 1,
}
PLACES = {"data.name": "features", "data.source": "fonts", "data.target": "handwritten"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of 48 rows. Not to be written to."""
    return small_store(tmp_path_factory.mktemp("features") / "small").folder


def losses_of(engine: Engine) -> list[dict[str, float]]:
    engine.model.train()
    found = []
    for step in engine.steps():
        engine.train_step(step)
        found.append(engine.read_means())
    return found


@pytest.mark.parametrize("method", ["get", "source-only"])
def test_the_losses_of_a_frozen_backbone(method: str) -> None:
    images = fastget.make_config({**FROZEN, "method.name": method})
    make_features(images, "features", dtype="float32")
    stored = fastget.make_config({**FROZEN, **PLACES, "data.root": "features", "method.name": method})
    one, other = (Engine(config, 0, load_domains(config.data), torch.device("cpu")) for config in (images, stored))
    assert not list(other.network.backbone.parameters())
    for part in ("bottleneck", "classifier"):
        getattr(other.network, part).load_state_dict(getattr(one.network, part).state_dict())
    expected, found = losses_of(one), losses_of(other)
    assert len(found) == 50
    assert expected[0]["loss"] != expected[-1]["loss"]
    for a, b in zip(expected, found, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"data__setting": "pda"},
        {"data__setting": "ssda", "data__shots": 2},
        {"data__imbalanced": True},
        {"method__base": "mixmatch", "network__bottleneck_norm": False},
    ],
    ids=["uda", "pda", "ssda", "imbalanced", "mixmatch"],
)
def test_every_setting_trains_and_resumes_to_the_bit(root: Path, settings: dict[str, Any]) -> None:
    whole = fastget.train(on_features(root, "whole", **settings), quiet=True)
    rows = {"pda": 24, "ssda": 40}.get(settings.get("data__setting", ""), 48)
    rows -= 16 if "data__imbalanced" in settings else 0  # of two classes 4 of 12 are kept
    assert whole.summary.images["target"] == rows
    shutil.copytree("whole", "cut")
    for name in ("summary.json", "predictions.csv", "checkpoints/final.pt", "checkpoints/step_00000012.pt"):
        (Path("cut") / name).unlink()
    fastget.train(on_features(root, "cut", train__resume="auto", **settings), quiet=True)
    assert metrics(Path("cut")) == metrics(Path("whole"))
    assert (Path("cut") / "predictions.csv").read_bytes() == (Path("whole") / "predictions.csv").read_bytes()
    a, b = (load_checkpoint(Path(run) / "checkpoints" / "final.pt") for run in ("whole", "cut"))
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    assert json.loads((Path("whole") / "split.json").read_text())["features"]["backbone"] == "resnet50"


def test_every_method_trains(root: Path) -> None:
    for name in methods.names():
        settings = {**fitting(name), "train__max_steps": 6, "train__warmup_steps": 2, "data__shots": 2}
        done = fastget.train(on_features(root, name, **settings), quiet=True)
        assert done.summary.steps == 6, name


@pytest.mark.parametrize("impl", ["fused", "plain"])
def test_a_group_without_parameters(root: Path, impl: str) -> None:
    config = on_features(root, "run", optim__impl=impl)
    engine = Engine(config, 0, load_domains(config.data), torch.device("cpu"))
    weight = engine.network.classifier.weight
    before = weight.detach().clone()
    engine.train_step(next(engine.steps()))
    assert [len(group["params"]) > 0 for group in engine.optimizer.param_groups] == [False, True]
    assert not torch.equal(before, weight)
    load_state(engine, state_of(engine))


@pytest.mark.parametrize("dim", [64, 4096])
def test_widths(dim: int) -> None:
    store = small_store(Path("wide"), dim=dim, per_class=4)
    done = fastget.train(on_features(store.folder, "run", train__max_steps=6), quiet=True)
    assert done.summary.steps == 6
    assert load_predictor("run").network.bottleneck[0].in_features == dim


def test_it_learns_and_tensorboard_shows_no_images(root: Path) -> None:
    settings = {"train__max_steps": 60, "train__warmup_steps": 30, "train__tensorboard": True, "train__eval_every": 30}
    done = fastget.train(on_features(root, "run", **settings), quiet=True)
    accuracy = done.summary.accuracy
    assert accuracy is not None
    assert accuracy > 0.9  # chance: 0.25
    assert list((Path("run") / "tensorboard").iterdir())


def test_the_record_and_what_does_not_go_together(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = fastget.train(on_features(root, "run"), quiet=True)
    state = load_checkpoint(Path("run") / "checkpoints" / "final.pt")
    tag = Store.open(root).origin.weights_tag
    assert (state["config"]["network"]["name"], state["config"]["network"]["weights"]) == ("resnet50", tag)

    assert main(["eval", "--checkpoint", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(done.summary.accuracy, abs=1e-12)
    words = "is of a run on features of resnet50: its network has no backbone"
    assert main(["predict", "--checkpoint", "run", "picture.jpg"]) == 2
    assert words in capsys.readouterr().err
    assert main(["export", "--checkpoint", "run", "--out", "model.pt2"]) == 2
    assert words in capsys.readouterr().err
    assert main(["eval", "--checkpoint", "run", "--data", "digits"]) == 2
    assert "is shown features of resnet50, and --data is digits" in capsys.readouterr().err

    other = small_store(Path("other"), per_class=13).folder
    assert main(["eval", "--checkpoint", "run", "--root", str(other)]) == 2
    assert "learned from features of resnet50" in capsys.readouterr().err
    Path("run/summary.json").unlink()
    with pytest.raises(ValueError, match=r"was started on other data: .*the features were made otherwise"):
        fastget.train(on_features(other, "run", train__resume="auto"), quiet=True)


def test_an_image_run_is_not_shown_features(root: Path, digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--data", "features", "--root", str(root), "--source", "photo", "--target", "sketch"]
    assert main(["eval", "--checkpoint", str(digits_run), *places]) == 2
    assert "is shown images, and --data is features" in capsys.readouterr().err


def test_the_split_is_that_of_the_images() -> None:
    """A draw depends on the paths, and the paths are stored."""
    images = fastget.make_config({"data.setting": "ssda", "data.resize": 16, "data.crop": 16})
    make_features(images, "features")
    stored = fastget.make_config({**PLACES, "data.root": "features", "data.setting": "ssda"})
    one, other = load_domains(images.data), load_domains(stored.data)
    assert one.protocol["lists"] == other.protocol["lists"]
    rows = Store.open(Path("features")).rows("handwritten")
    place = {path: i for i, path in enumerate(rows.paths)}
    assert other.labelled_target is not None
    for i in (0, 7, len(other.labelled_target) - 1):
        assert (other.features["labelled_target"][i] == rows.features[place[other.labelled_target.paths[i]]]).all()
