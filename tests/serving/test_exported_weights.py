"""`fastget export --format safetensors`: a file that holds the network, and predicts as the run does."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fastget.commands.main import main
from fastget.config import DataConfig
from fastget.data.decode import read_image
from fastget.data.digits import digits_root
from fastget.data.domains import load_domains
from fastget.loading.pixels import normalise
from fastget.runs.checkpoint import BadCheckpoint
from fastget.runs.upgrade import FORMAT
from fastget.serving.exported_weights import KEY
from fastget.serving.predictor import load_predictor


@pytest.fixture(scope="module")
def exported(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("weights") / "model.safetensors"
    assert main(["export", "--checkpoint", str(digits_run), "--out", str(file), "--format", "safetensors"]) == 0
    return file


def told(file: Path) -> dict[str, object]:
    with safe_open(file, framework="pt") as opened:
        content: dict[str, object] = json.loads(opened.metadata()[KEY])
    return content


def test_it_predicts_as_the_run_does(exported: Path, digits_run: Path) -> None:
    """The same command on both, to the letter."""
    images = str(digits_root() / "handwritten" / "3")
    for name, checkpoint in (("run", digits_run), ("file", exported)):
        assert main(["predict", "--checkpoint", str(checkpoint), images, "--out", f"{name}.csv"]) == 0
    assert Path("run.csv").read_bytes() == Path("file.csv").read_bytes()
    rows = list(csv.DictReader(Path("file.csv").read_text().splitlines()))
    assert len(rows) == 183
    assert len({row["confidence"] for row in rows}) > 100


def test_it_is_evaluated_as_the_run_is(exported: Path, digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--checkpoint", str(exported), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] == pytest.approx(json.loads((digits_run / "summary.json").read_text())["accuracy"])


def test_what_is_in_it(exported: Path, digits_run: Path) -> None:
    content = told(exported)
    assert content["classes"] == [str(digit) for digit in range(10)]
    assert content["preprocessing"]["resize"] == 32  # type: ignore[index]  # of JSON
    assert content["preprocessing"]["crop"] == 28  # type: ignore[index]  # of JSON
    assert str(digits_root()) not in json.dumps(content)  # no place of this machine
    tensors = load_file(exported)
    state = torch.load(digits_run / "checkpoints" / "final.pt", weights_only=True)["model"]
    own = {name: value for name, value in state.items() if name.startswith("network.")}
    assert all(torch.equal(tensors[name], value) for name, value in own.items())
    assert set(tensors) - set(own) == {"source_class_means", "source_class_counts"}


def test_the_class_means_are_those_of_the_source(exported: Path) -> None:
    predictor, tensors = load_predictor(exported), load_file(exported)
    source = load_domains(DataConfig()).source
    assert tensors["source_class_counts"].tolist() == source.counts().tolist()
    assert tensors["source_class_means"].shape == (10, 256)
    for digit in (0, 7):
        places = (source.labels == digit).nonzero()[0]
        images = np.stack([np.asarray(read_image(source.file(int(i)), 32))[2:30, 2:30] for i in places])
        features, _ = predictor.network(normalise(torch.from_numpy(images), predictor.preprocessing))
        torch.testing.assert_close(tensors["source_class_means"][digit], features.mean(0), rtol=1e-3, atol=1e-4)


def test_without_the_source(
    digits_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(data: DataConfig, *rest: object) -> None:
        raise ValueError(f"no folder {data.root}")

    monkeypatch.setattr("fastget.commands.export.find_domain", gone)
    command = ["export", "--checkpoint", str(digits_run), "--out", "m.safetensors"]
    assert main([*command, "--root", "gone"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the class means of the source need its images, and these are not found: no folder gone" in said
    assert "--no-source-means" in said
    assert not Path("m.safetensors").exists()
    assert main([*command, "--no-source-means"]) == 0
    assert "source_class_means" not in load_file("m.safetensors")


def test_bad_files(exported: Path) -> None:
    tensors, content = load_file(exported), told(exported)
    lacking = {name: value for name, value in tensors.items() if "classifier" not in name}
    Path("bad.safetensors").write_bytes(exported.read_bytes()[:5000])
    with pytest.raises(BadCheckpoint, match="damaged or no safetensors file"):
        load_predictor("bad.safetensors")
    for some, metadata, message in (
        (tensors, None, "was not written by `fastget export`"),
        (tensors, content | {"fastget_format": FORMAT + 1}, rf"reads up to {FORMAT}"),
        (lacking, content, r"2 entries are missing \(classifier"),
        (tensors, content | {"classes": None}, "lacks a run's configuration, class names or weights"),
    ):
        save_file(some, "bad.safetensors", None if metadata is None else {KEY: json.dumps(metadata)})
        with pytest.raises(BadCheckpoint, match=message):
            load_predictor("bad.safetensors")
