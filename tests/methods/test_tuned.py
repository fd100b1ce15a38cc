from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from fastget.kernels import configs
from fastget.kernels.configs import Tile
from fastget.methods import tuned
from fastget.methods.backend import choose_backend

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
TILE = Tile(BLOCK_B=16, BLOCK_C=64, BLOCK_D=32, PRECISION="bf16", num_warps=8, num_stages=3)
SHAPE = (36, 65, 256)


def entry(config: Tile = TILE) -> tuned.TunedEntry:
    B, C, D = SHAPE
    return tuned.TunedEntry(
        kernel="logits", B=B, C=C, D=D, precision="bf16", config=asdict(config), microseconds=2.0, rule=3.0
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own, and a card that answers to its name."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card 9000")
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13000, raising=False)
    monkeypatch.setattr(configs, "_choice", configs.Choice())
    tuned.use_once.cache_clear()
    return tmp_path


def test_a_measured_table_is_used_from_then_on() -> None:
    rule = configs.logits(*SHAPE, "bf16")
    tuned.write(CUDA, [entry()])
    assert configs.logits(*SHAPE, "bf16") == rule != TILE, "written is not yet in use"
    choose_backend("auto", CUDA)
    assert configs.logits(*SHAPE, "bf16") == TILE
    assert configs.logits(37, *SHAPE[1:], "bf16") == rule, "other shapes are the rules'"
    assert "measured on this card, for (36, 65, 256)" in tuned.in_use(CUDA)
    with configs.choosing(table=None):
        choose_backend("auto", CUDA)
        assert configs.logits(*SHAPE, "bf16") == rule, "what is chosen since stays, as `fastget tune` needs it"


def test_the_models_times_are_never_used_on_a_gpu() -> None:
    tuned.write(CPU, [entry()])
    assert tuned.MODELLED in tuned.key(CPU)
    assert tuned.use(CUDA) == 0
    assert tuned.use(CPU) == 0
    assert configs.logits(*SHAPE, "bf16") != TILE
    assert "has not run" in tuned.in_use(CUDA)
    assert "no GPU here" in tuned.in_use(CPU)


@pytest.mark.parametrize("other", ["card", "driver", "triton", "kernels"])
def test_another_card_driver_triton_or_kernel_is_tuned_anew(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned.write(CUDA, [entry()])
    if other == "card":
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card 9001")
    elif other == "driver":
        monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13010, raising=False)
    elif other == "triton":
        monkeypatch.setattr("triton.__version__", "99.0")
    else:
        monkeypatch.setattr(tuned, "kernels_version", lambda: "another")
    assert tuned.use(CUDA) == 0


@pytest.mark.parametrize("text", ["{", "[]", '{"KEY": 3}', '{"KEY": [{"kernel": "logits"}]}', "config"], ids=str)
def test_a_damaged_file_is_left_out_with_a_word(text: str, cache: Path) -> None:
    if text == "config":  # a field of another type
        row = asdict(entry())
        row["config"]["BLOCK_B"] = "many"
        text = json.dumps({"KEY": [row]})
    (cache / tuned.FILE).write_text(text.replace("KEY", tuned.key(CUDA)))
    with pytest.warns(UserWarning, match=r"tune\.json is damaged .* run `fastget tune` again"):
        assert tuned.use(CUDA) == 0
    with pytest.warns(UserWarning, match="damaged"):
        tuned.write(CUDA, [entry()])
    assert tuned.use(CUDA) == 1


def test_a_second_tuning_replaces_the_first_and_keeps_other_shapes() -> None:
    tuned.write(CUDA, [entry()])
    other = Tile(BLOCK_B=32, BLOCK_C=32, BLOCK_D=32, PRECISION="bf16", num_warps=4)
    tuned.write(CUDA, [entry(other), tuned.TunedEntry(**{**asdict(entry()), "B": 72})])
    assert tuned.use(CUDA) == 2
    assert configs.logits(*SHAPE, "bf16") == other
    assert configs.logits(72, *SHAPE[1:], "bf16") == TILE


def test_the_kernels_version_is_that_of_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tuned.kernels_version()
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + (b"#" if self.name == "tile.py" else b""))
    assert tuned.kernels_version() != before
