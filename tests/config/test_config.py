"""The configuration: layers, types, ranges, and messages that name the nearest right key."""

from pathlib import Path
from typing import Any

import pytest

from fastget.config import PRESETS, Config, describe_type, make_config, walk


def test_layers_later_ones_win(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("get: {tau: 0.4, gamma_Q: 0.3}\ntrain: {seeds: [3, 4]}\n")
    config = make_config({"get.tau": "0.6"}, file=file, recipe="paper")
    assert (config.own.tau, config.own.gamma_Q, config.own.gamma_mu) == (0.6, 0.3, 0.9)
    assert config.train.seeds == (3, 4)
    assert config.network.name == PRESETS["digits"]["network.name"]


def test_presets_belong_to_their_data_set() -> None:
    assert make_config({"data.name": "folder"}).network.name == "resnet50"


def test_written_and_read_again(tmp_path: Path) -> None:
    config = make_config({"train.seeds": "0,1", "train.resume": "auto", "get.kl_f": "off", "data.root": "/x"})
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    assert make_config(file=tmp_path / "c.yaml") == config
    default = make_config()
    (tmp_path / "d.yaml").write_text(default.to_yaml())
    assert make_config(file=tmp_path / "d.yaml") == default


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"get.tua": 1}, "unknown setting 'get.tua' .did you mean 'get.tau'"),
        ({"tau": 1}, "did you mean 'get.tau'"),
        ({"get.tau": "x"}, "get.tau must be a number, got 'x'"),
        ({"get.tau": True}, "get.tau must be a number"),
        ({"get.tau": 0}, "get.tau must be above 0"),
        ({"get.tau": "nan"}, "get.tau"),
        ({"get.gamma_Q": 2}, "get.gamma_Q must be at least 0 and at most 1, got 2"),
        ({"method.name": "gett"}, "one of get, source-only, mcc, atdoc-na, got 'gett' .did you mean 'get'"),
        ({"train.max_steps": "1.5"}, "a whole number or none"),
        ({"train.max_steps": 0}, "at least 1"),
        ({"data.flip": "maybe"}, "true or false"),
        ({"data.crop": 40}, "data.crop .40. must not exceed data.resize .32."),
        ({"train.seeds": "1,1"}, "different seeds"),
        ({"train.seeds": "-1"}, "at least 0"),
        ({"data.root": ["a"]}, "a text"),
        ({"optim.momentum": 0.0}, "nesterov"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a\n", "must hold sections"), ("a: [", "not valid YAML"), ("get: {tau: x}", "c.yaml: get.tau")],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        make_config(file=file)


def test_missing_file_and_unknown_recipe(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the configuration file"):
        make_config(file=tmp_path / "no.yaml")
    with pytest.raises(ValueError, match="did you mean 'paper'"):
        make_config(recipe="papr")


def test_every_field_has_a_meaning_and_a_type() -> None:
    for key, info, _ in walk(Config()):
        assert len(info.metadata["help"]) > 5, key
        assert describe_type(key)


def test_presets_name_real_fields() -> None:
    for name in PRESETS:
        assert make_config({"data.name": name}).data.name == name
