"""From a checkpoint to a network: the right one, or an error that says what is wrong with the file."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget.commands.main import main
from fastget.common.preprocessing import Preprocessing
from fastget.config import NetworkConfig, make_config
from fastget.networks.network import build_network
from fastget.runs.checkpoint import BadCheckpoint, load_checkpoint, save_checkpoint
from fastget.serving.predictor import load_predictor


class Payload:
    """What an attacker would pickle."""

    def __reduce__(self) -> Any:
        return (os.system, ("touch ran",))


@pytest.fixture
def run(digits_run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    return Path(shutil.copytree(digits_run, tmp_path / "copy"))


def test_a_run(digits_run: Path) -> None:
    before = torch.get_rng_state()
    predictor = load_predictor(digits_run)
    assert torch.equal(torch.get_rng_state(), before)
    assert (predictor.step, predictor.preprocessing) == (70, Preprocessing(32, 28))
    assert predictor.classes == tuple("0123456789")
    assert predictor.checkpoint == digits_run / "checkpoints" / "final.pt"
    assert not predictor.network.training
    stored = load_checkpoint(predictor.checkpoint)["model"]
    assert any(name.startswith("method.") for name in stored)
    for name, value in predictor.network.state_dict().items():
        assert torch.equal(value, stored[f"network.{name}"])
    assert load_predictor(digits_run / "checkpoints").checkpoint == predictor.checkpoint


def test_a_run_that_has_not_ended(run: Path) -> None:
    (run / "checkpoints" / "final.pt").unlink()
    said: list[str] = []
    assert load_predictor(run, report=said.append).step == 70
    assert "has no final.pt: the run has not ended. Using step_00000070.pt, of step 70" in said[0]
    (run / "checkpoints" / "step_00000070.pt").write_bytes(b"PK\x03\x04half")
    assert load_predictor(run, report=said.append).step == 35
    assert "step_00000070.pt is damaged" in said[1]
    with pytest.warns(UserWarning, match="step_00000035"):
        load_predictor(run)
    (run / "checkpoints" / "step_00000035.pt").write_bytes(b"PK\x03\x04half")
    with pytest.raises(BadCheckpoint, match=r"no checkpoint of .* can be used: .*70\.pt is damaged.*35\.pt is damaged"):
        load_predictor(run)


def test_a_damaged_final_checkpoint_is_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    final = run / "checkpoints" / "final.pt"
    final.write_bytes(final.read_bytes()[:-1000])
    assert main(["predict", "--checkpoint", str(run), "x.png"]) == 1
    captured = capsys.readouterr()
    assert "final.pt is damaged" in captured.err
    assert "Using step_00000070.pt" in captured.err
    assert captured.out.startswith("path,label")
    assert main(["predict", "--checkpoint", str(final), "x.png"]) == 2
    assert "step_00000070.pt is intact: give that one" in capsys.readouterr().err


def test_places_without_a_checkpoint() -> None:
    Path("empty").mkdir()
    for seed in range(2):
        Path("several", f"seed-{seed}").mkdir(parents=True)
    Path("text.pt").write_text("hello")
    torch.save({"t": torch.ones(2)}, "other.pt")
    for name, message in (
        ("empty", "holds no checkpoint: expected .*final.pt"),
        ("several", "several seeds .*seed-0, seed-1.*: give .*seed-0"),
        ("gone", "no run or checkpoint .*gone"),
        ("text.pt", "is a text file, not a checkpoint"),
        ("other.pt", "not a checkpoint of fastget"),
    ):
        with pytest.raises(BadCheckpoint, match=message):
            load_predictor(name)


def test_a_pickled_object_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"fastget_format": 1, "model": {}, "config": Payload(), "classes": ["a"]}, tmp_path / "evil.pt")
    assert main(["predict", "--checkpoint", str(tmp_path / "evil.pt"), "x.png"]) == 2
    assert "could run code: it is not loaded" in capsys.readouterr().err
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("config.network.name", "resnet18", "another architecture .*entries are missing .*entries are unknown"),
        ("config.network.bottleneck_dim", 128, "another architecture .*entries have another shape"),
        ("classes", list("0123456"), "names 7 classes, and its classifier has 10"),
        ("config.network.name", "resnet51", "cannot use: unknown network.name 'resnet51'"),
        ("config.network.colour", "red", "cannot use: unknown setting 'network.colour'"),
        ("config", None, "lacks a run's configuration"),
        ("classes", [1, 2], "lacks a run's configuration, class names"),
    ],
)
def test_contents_that_do_not_fit(digits_run: Path, path: str, value: Any, message: str) -> None:
    state = load_checkpoint(digits_run / "checkpoints" / "final.pt")
    *above, name = path.split(".")
    part = state
    for key in above:
        part = part[key]
    part[name] = value
    save_checkpoint(Path("changed.pt"), state)
    with pytest.raises(BadCheckpoint, match=message):
        load_predictor("changed.pt")


def test_no_imagenet_weights_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: Any, **options: Any) -> None:
        raise OSError("no internet")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    fields = {"network.name": "resnet18", "data.name": "folder", "data.resize": 40, "data.crop": 33}
    config = make_config({**fields, "network.weights": "imagenet"})
    with pytest.raises(ValueError, match="cannot download"):
        build_network(config.network, 3)
    network = build_network(NetworkConfig(name="resnet18", weights="none"), 3)
    weights = {f"network.{name}": value for name, value in network.state_dict().items()}
    save_checkpoint(tmp_path / "r.pt", {"config": config.to_dict(), "classes": ["a", "b", "c"], "model": weights})
    predictor = load_predictor(tmp_path / "r.pt")
    levels = torch.randint(0, 256, (2, 33, 33, 3), dtype=torch.uint8)
    assert predictor.probabilities(levels).sum(1).tolist() == pytest.approx([1, 1], abs=1e-5)
