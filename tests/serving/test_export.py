"""`fastget export`: a file that other programs load, with the checkpoint's outputs."""

import csv
import importlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fastget.commands.main import main
from fastget.config import DataConfig
from fastget.data.decode import read_image
from fastget.data.domains import load_domains
from fastget.serving.export import METADATA, Deployed, ExportFailed, compare, export, load_exported
from fastget.serving.predictor import Predictor, load_predictor

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript"))


@pytest.fixture(scope="module")
def predictor(digits_run: Path) -> Predictor:
    return load_predictor(digits_run)


@pytest.fixture(scope="module")
def exported(predictor: Predictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("exported") / "model.pt2"
    assert export(predictor, file) < 1e-5
    return file


def target_images() -> Tensor:
    """(1797, 3, 28, 28) as a user of the file makes them: between 0 and 1, not normalised."""
    images = load_domains(DataConfig()).target
    squares = [np.asarray(read_image(images.file(i), 32))[2:30, 2:30] for i in range(len(images))]
    return torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2).float() / 255


def check_against_the_run(file: Path, digits_run: Path, predictor: Predictor) -> None:
    """Every image of the target: the label of predictions.csv, the confidence of predict."""
    own = list(csv.DictReader((digits_run / "predictions.csv").read_text().splitlines()))
    assert len({row["prediction"] for row in own}) >= 8
    model = load_exported(file)
    P = torch.cat([model(chunk) for chunk in target_images().split(500)]).softmax(1)
    confidence, labels = P.max(1)
    first, second = P.topk(2).values.unbind(1)
    tied = (first - second < 1e-4).tolist()  # in batches of another size they may fall otherwise
    assert sum(tied) < 20
    assert all(
        t or predictor.classes[label] == row["prediction"] for t, label, row in zip(tied, labels, own, strict=True)
    )
    files = load_domains(DataConfig()).target
    rows = predictor.predict([files.file(i) for i in range(len(files))])
    assert np.abs(confidence.detach().numpy() - [row.confidence for row in rows]).max() < 1e-5


def test_the_runs_own_predictions(exported: Path, digits_run: Path, predictor: Predictor) -> None:
    check_against_the_run(exported, digits_run, predictor)


def test_what_the_file_tells(exported: Path) -> None:
    extra = {METADATA: ""}
    program = torch.export.load(exported, extra_files=extra)
    told = json.loads(extra[METADATA])
    assert (told["classes"], told["input"]["shape"]) == ([str(digit) for digit in range(10)], ["N", 3, 28, 28])
    assert (told["preprocessing"]["resize"], told["preprocessing"]["crop"]) == (32, 28)
    for count in (1, 3, 300):
        assert program.module()(torch.rand(count, 3, 28, 28)).shape == (count, 10)


def test_the_command(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--checkpoint", str(digits_run), "--out", "m.pt2", "--format", "torch"]) == 0
    said = capsys.readouterr()
    assert "m.pt2: 10 classes" in said.err
    assert "logits within" in said.err
    assert [path.name for path in Path().iterdir()] == ["m.pt2"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--out model.bin", "ends in one of .pt2 (torch), .onnx (onnx), .safetensors (safetensors), got model.bin"),
        ("--out model.onnx --format torch", "ends in .pt2, got model.onnx"),
        ("--out nowhere/model.pt2", "cannot write nowhere/model.pt2"),
        ("--out m.pt2 --checkpoint gone", "no run or checkpoint gone"),
    ],
)
def test_bad_input(digits_run: Path, args: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--checkpoint", str(digits_run), *args.split()]) == 2
    assert message in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_other_outputs_are_not_written(
    digits_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An export that forgets to normalise is found out, and what stood there before stays."""

    def forgetful(self: Deployed, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)[1] + 0 * self.mean.sum() + 0 * self.std.sum()
        return logits

    Path("m.pt2").write_text("before")
    monkeypatch.setattr(Deployed, "forward", forgetful)
    assert main(["export", "--checkpoint", str(digits_run), "--out", "m.pt2"]) == 1
    assert "logits differ from the checkpoint's" in capsys.readouterr().err
    assert Path("m.pt2").read_text() == "before"
    assert [path.name for path in Path().iterdir()] == ["m.pt2"]


def test_a_network_that_cannot_be_traced(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    def branching(self: Deployed, images: Tensor) -> Tensor:
        return images if images.sum() > 0 else -images  # the values decide, which no graph can hold

    monkeypatch.setattr(Deployed, "forward", branching)
    with pytest.raises(ExportFailed, match=r"torch\.export cannot export network\.name=small"):
        export(predictor, "m.pt2")


def test_what_is_compared(predictor: Predictor) -> None:
    made, shown = Deployed(predictor.network, predictor.preprocessing), (torch.zeros(1, 3, 28, 28),)
    fixed = torch.export.export(made, shown).module()
    with pytest.raises(ExportFailed, match=r"fails on a batch of 2: .*Guard failed"):
        compare(predictor, lambda images: fixed(images))
    difference, largest = compare(predictor, lambda images: torch.full((len(images), 10), float("nan")))
    assert not difference <= largest
    with pytest.raises(ExportFailed, match=r"expected logits of shape \(1, 10\), got \(1, 9\)"):
        compare(predictor, lambda images: torch.zeros(len(images), 9))


@pytest.mark.skipif(HAS_ONNX, reason="ONNX is installed")
def test_without_onnx(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--checkpoint", str(digits_run), "--out", "m.onnx"]) == 2
    assert "pip install 'fastget[onnx]'" in capsys.readouterr().err


@pytest.mark.skipif(not HAS_ONNX, reason="needs onnx and onnxscript")
def test_onnx(digits_run: Path, predictor: Predictor) -> None:
    assert export(predictor, "m.onnx") < 1e-4
    check_against_the_run(Path("m.onnx"), digits_run, predictor)
    properties = importlib.import_module("onnx").load("m.onnx").metadata_props
    told = json.loads(next(entry.value for entry in properties if entry.key == "fastget"))
    assert told["classes"] == list(predictor.classes)
