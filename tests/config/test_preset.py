"""train.preset=quick: its values, what wins over them, and the way back to the full run."""

from pathlib import Path
from typing import Any

import pytest

from fastget.common.preprocessing import Preprocessing
from fastget.config import Config, fields_of, make_config, without_preset
from fastget.config.presets import QUICK_IMAGES, QUICK_TRAIN, of_preset

OWN = {"data.name": "folder", "data.root": "x", "data.source": "a", "data.target": "b"}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "quick.md"


def value(config: Config, key: str) -> Any:
    section, name = key.split(".")
    return config.to_dict()[section][name]


def test_the_values_are_those_of_the_page() -> None:
    config = make_config({**OWN, "train.preset": "quick"})
    text = PAGE.read_text(encoding="utf-8")
    for key, wanted in {**QUICK_TRAIN, **QUICK_IMAGES}.items():
        assert value(config, key) == wanted != value(make_config(OWN), key)
        assert f"| `{key}` | {wanted:g} |" in text if not isinstance(wanted, str) else f"| `{key}` | {wanted} |" in text


def test_settings_of_ones_own_and_those_of_a_file_win(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("train: {preset: quick, batch_size: 8}\ndata: {name: folder}\n")
    config = make_config({"train.max_steps": 7}, file=tmp_path / "c.yaml")
    assert (config.train.max_steps, config.train.batch_size, config.network.name) == (7, 8, "resnet18")


def test_it_lies_above_the_data_sets_and_below_the_recipe() -> None:
    config = make_config({"data.name": "domainnet126", "train.preset": "quick"})
    assert (config.network.name, config.data.pda_classes) == ("resnet18", 40)  # else resnet34, by the data set
    config = make_config({"data.setting": "ssda", "method.name": "mme", "train.preset": "quick"})
    assert config.network.head == "cosine"  # the recipe's


@pytest.mark.parametrize("data", ["digits", "features"])
def test_what_is_small_keeps_its_network(data: str) -> None:
    config = make_config({"data.name": data, "train.preset": "quick"})
    assert config.network == make_config({"data.name": data}).network
    assert config.train.max_steps == QUICK_TRAIN["train.max_steps"]
    assert config.data.limit is None


def test_the_full_run_has_what_was_set_and_nothing_of_the_preset() -> None:
    given = {**OWN, "optim.lr": 0.5, "train.seeds": (3,)}
    assert without_preset(make_config({**given, "train.preset": "quick"})) == make_config(given)
    filled = {"data.resize": 128, "data.interpolation": "bilinear", "data.mean": Preprocessing().mean}
    assert without_preset(make_config({**given, **filled, "train.preset": "quick"})) == make_config(given)
    assert without_preset(make_config({**given, "train.preset": "quick", "network.name": "resnet34"})) == make_config(
        {**given, "network.name": "resnet34"}
    )


def test_a_runs_own_file_with_another_preset(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(make_config({**OWN, "train.preset": "quick"}).to_yaml())
    assert make_config({"train.preset": "none"}, file=tmp_path / "c.yaml") == make_config(OWN)
    assert make_config(file=tmp_path / "c.yaml") == make_config({**OWN, "train.preset": "quick"})


def test_every_value_is_of_a_field() -> None:
    sections = {name: fields_of(type(section)) for name, section in Config().sections().items()}
    for key in of_preset("quick", "folder"):
        assert key.split(".")[1] in sections[key.split(".")[0]]


def test_an_older_runs_file_lacks_what_came_later(tmp_path: Path) -> None:
    tree = make_config(OWN).to_dict()
    for name in ("limit", "started_in", "max_pixels", "interpolation", "mean", "std"):
        del tree["data"][name]
    lines = [f"  {name}: {'null' if value is None else value}" for name, value in tree["data"].items()]
    (tmp_path / "c.yaml").write_text("\n".join(["data:", *lines]))
    assert make_config(file=tmp_path / "c.yaml").data.interpolation == Preprocessing().interpolation
