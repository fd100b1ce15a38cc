"""A run with a backbone of timm: from its images to its record, its checkpoint and what is made of that."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from fastget.commands.main import main
from fastget.common.preprocessing import Preprocessing
from fastget.networks.provenance import digest_of
from fastget.runs.summary import read_summary
from fastget.serving.export import Deployed, metadata
from fastget.serving.predictor import load_predictor
from fastget.training.train import train
from tests.pictures import write_domains
from tests.support import tiny

HALF = (0.5, 0.5, 0.5)
MADE = Preprocessing(34, 32, "bicubic", HALF, HALF)


def settings(root: Path, weights: str, **fields: Any) -> dict[str, Any]:
    small = {"train__max_steps": 2, "train__warmup_steps": 1, "train__eval_every": 2, "train__batch_size": 4}
    data = {"data__name": "folder", "data__root": str(root), "data__source": "photo", "data__target": "sketch"}
    return {**small, **data, "network__name": "timm/test_vit", "network__weights": weights, "data__crop": 32, **fields}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_a_run_from_beginning_to_end(tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, out = write_domains(tmp_path / "images", per_class=3), tmp_path / "run"
    train(tiny(out, **settings(root, str(weights))), quiet=True)

    own = timm.create_model("test_vit", num_classes=0, img_size=32)
    timm.models.load_checkpoint(
        own, str(weights), strict=False, filter_fn=timm.models.vision_transformer.checkpoint_filter_fn
    )
    record = {"name": "timm/test_vit", "weights": "w.safetensors", "sha256": digest_of(own)}
    assert json.loads((out / "summary.json").read_text())["backbone"] == record
    environment = json.loads((out / "environment.json").read_text())
    assert environment["backbone"] == record
    assert environment["versions"]["timm"] == timm.__version__

    predictor = load_predictor(out)
    assert predictor.preprocessing == MADE
    assert predictor.backbone == record
    told = metadata(predictor)["preprocessing"]
    assert told == {
        "resize": 34,
        "interpolation": "bicubic",
        "crop": 32,
        "normalised_inside": {"mean": list(HALF), "std": list(HALF)},
    }
    levels = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    exported = Deployed(predictor.network, predictor.preprocessing)((levels / 255).permute(0, 3, 1, 2))
    torch.testing.assert_close(exported.softmax(1), predictor.probabilities(levels), atol=1e-4, rtol=1e-4)

    capsys.readouterr()
    assert main(["eval", "--checkpoint", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    summary = read_summary(out)
    assert summary is not None
    assert found["backbone"] == record
    assert found["accuracy"] == summary.accuracy
    rows = [line.split(",") for line in (out / "predictions.csv").read_text().splitlines()[1:]]
    for row, predicted in zip(rows, predictor.predict([root / row[0] for row in rows]), strict=True):
        assert predicted.confidence == pytest.approx(float(row[3]), abs=1e-3)


def test_going_on_says_when_the_weights_are_others(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = write_domains(tmp_path / "images", per_class=3), tmp_path / "run"
    config = tiny(out, **settings(root, str(weights)))
    train(config, quiet=True)
    first = json.loads((out / "summary.json").read_text())["backbone"]
    save_file(timm.create_model("test_vit").state_dict(), weights)  # others, under the same name
    for name in ("summary.json", "checkpoints/final.pt"):
        (out / name).unlink()
    again = dataclasses.replace(config, train=dataclasses.replace(config.train, resume="auto"))
    train(again)
    told = " ".join(capsys.readouterr().out.split())
    assert f"began with timm/test_vit (w.safetensors, sha256 {first['sha256'][:12]})" in told
    assert json.loads((out / "summary.json").read_text())["backbone"] == first


def test_several_seeds_share_what_their_weights_share(tmp_path: Path, weights: Path) -> None:
    root = write_domains(tmp_path / "images", per_class=3)
    for start, shared in ((str(weights), {"name", "weights", "sha256"}), ("none", {"name", "weights"})):
        out = tmp_path / Path(start).stem
        train(tiny(out, **settings(root, start, train__seeds=(0, 1))), quiet=True)
        assert set(json.loads((out / "summary.json").read_text())["backbone"]) == shared


def test_a_wrong_size_or_name_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for setting, told in (
        ("network.name=vit_b_16", "takes images of 224 x 224 pixels alone, and data.crop is 28"),
        ("network.name=timm/resnet5O", "did you mean timm/resnet50,"),
        ("network.name=timm/test_vit", "use data.crop=32"),
    ):
        assert main(["train", "--out", str(tmp_path / "run"), "--set", setting]) == 2  # on digits, of 28 pixels
        assert told in " ".join(capsys.readouterr().err.split())
