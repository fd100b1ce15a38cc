"""The configuration: layers, types, ranges, and messages that name the nearest right key."""

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastget import methods
from fastget.config import PRESETS, Config, MethodConfig, OptimConfig, TrainConfig, describe_type, make_config, walk
from tests.support import fitting


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
        ({"method.name": "gett"}, "one of get, source-only, .*, got 'gett' .did you mean 'get'"),
        ({"train.max_steps": "1.5"}, "a whole number or none"),
        ({"train.max_steps": 0}, "at least 1"),
        ({"data.flip": "maybe"}, "true or false"),
        ({"data.crop": 40}, "data.crop .40. must not exceed data.resize .32."),
        ({"train.seeds": "1,1"}, "different seeds"),
        ({"train.seeds": "a"}, "whole numbers"),
        ({"train.seeds": "-1"}, "at least 0"),
        ({"data.root": ["a"]}, "a text"),
        ({"optim.momentum": 0.0}, "nesterov"),
        ({"network.bottleneck_dim": 10**12}, "network.bottleneck_dim must be at least 1 and at most 65536"),
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


@pytest.mark.parametrize("name", methods.names())
def test_copies_and_round_trips_of_every_method(name: str, tmp_path: Path) -> None:
    given = {key.replace("__", "."): value for key, value in fitting(name).items()}
    config = make_config({**given, "train.seeds": "0,2"})
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    assert make_config(file=tmp_path / "c.yaml") == config
    assert getattr(config, name.replace("-", "_")) == config.own
    with pytest.raises(AttributeError, match="no section 'nonsense'"):
        getattr(config, "nonsense")  # noqa: B009  # the look-up is the test


def test_settings_of_another_method_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"get\.tau is a setting of get, and the method is mcc"):
        make_config({"method.name": "mcc", "get.tau": "0.2"})
    (tmp_path / "c.yaml").write_text("get: {tau: 0.4}\nmethod: {name: source-only}\n")  # as runs of 0.1 have them
    assert make_config(file=tmp_path / "c.yaml").method.name == "source-only"
    (tmp_path / "c.yaml").write_text("get: {tau: x}\nmethod: {name: source-only}\n")
    with pytest.raises(ValueError, match=r"c\.yaml: get\.tau must be a number"):
        make_config(file=tmp_path / "c.yaml")


def test_another_method_than_the_files_has_its_own_weight(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(make_config({"optim.lr": 0.5}).to_yaml())
    config = make_config({"method.name": "atdoc-na"}, file=tmp_path / "c.yaml")
    assert (config.method.weight, config.method.ramp, config.optim.lr) == (0.2, "linear", 0.5)


def test_the_own_section_is_the_methods() -> None:
    config = make_config()
    with pytest.raises(ValueError, match=r"method\.name=mcc goes with a MCC"):
        dataclasses.replace(config, method=dataclasses.replace(config.method, name="mcc"))


def test_values_given_in_python(tmp_path: Path) -> None:
    """Numpy's numbers become Python's; what is only like a value is refused."""
    config = Config(train=TrainConfig(max_steps=np.int64(10), seeds=[0, 1]), optim=OptimConfig(lr=np.float64(0.5)))  # type: ignore[arg-type]  # on purpose
    assert (config.train.max_steps, config.train.seeds, config.optim.lr) == (10, (0, 1), 0.5)
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    assert make_config(file=tmp_path / "c.yaml").train.max_steps == 10
    for wrong, message in (
        (TrainConfig(seeds=("0", "1")), r"train\.seeds must be whole numbers"),  # type: ignore[arg-type]
        (TrainConfig(max_steps=True), r"train\.max_steps must be a whole number or none, got True"),
        (TrainConfig(max_steps="10"), r"train\.max_steps"),  # type: ignore[arg-type]
        (TrainConfig(max_steps=1.5), r"train\.max_steps"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=message):
            Config(train=wrong)
    with pytest.raises(ValueError, match=r"optim\.lr must be"):
        Config(optim=OptimConfig(lr=10**400))
    with pytest.raises(ValueError, match=r"optim\.lr must be a finite number and above 0"):
        Config(optim=OptimConfig(lr=float("nan")))


def test_a_runs_file_under_another_recipe_or_method(tmp_path: Path) -> None:
    """What recipes set is the new recipe's to say; what the user chose beside it stays."""

    def file(**settings: object) -> Path:
        config = make_config({key.replace("__", "."): value for key, value in settings.items()})
        (tmp_path / "run.yaml").write_text(config.to_yaml())
        return tmp_path / "run.yaml"

    default = file(method__name="mcc")
    original = make_config({}, file=default, recipe="original")
    assert (original.own.temperature, original.method.ramp, original.method.recipe) == (2.5, "constant", "original")
    back = make_config({}, file=file(method__name="mcc", method__recipe="original"), recipe="default")
    assert (back.own.temperature, back.method.ramp, back.method.recipe) == (1.0, "linear", "default")
    same = make_config({}, file=file(method__name="mcc", mcc__temperature=4.0), recipe="default")
    assert same.own.temperature == 4.0  # the recipe it has: its own values stay

    other = make_config({"method.name": "bnm"}, file=file(method__name="mcc", method__base="cdan", optim__lr=0.5))
    assert (other.method.base, other.optim.lr) == ("cdan", 0.5)
    mme = make_config({"method.name": "mme"}, file=file(method__name="get", data__setting="ssda"))
    assert (mme.network.head, mme.optim.weight_decay, mme.method.weight) == ("cosine", 5e-4, 0.1)
    mcc = make_config({"method.name": "mcc"}, file=file(method__name="mme", data__setting="ssda"))
    assert (mcc.network.head, mcc.optim.label_smoothing, mcc.method.weight) == ("linear", 0.1, 1.0)
    (tmp_path / "own.yaml").write_text("method: {weight: 0.5}\nmcc: {temperature: 3}\n")  # by hand: of no method
    by_hand = make_config({"method.name": "mcc"}, file=tmp_path / "own.yaml")
    assert (by_hand.method.weight, by_hand.own.temperature) == (0.5, 3.0)
    with pytest.raises(ValueError, match="unknown recipe 'bogus' of mcc"):
        Config(method=MethodConfig(name="mcc", recipe="bogus"))


def test_what_means_nothing_to_a_base_model_is_refused(tmp_path: Path) -> None:
    given = {"method.name": "pl", "method.base": "mixmatch"}
    with pytest.raises(ValueError, match=r"method.weight means nothing to method.base=mixmatch, which has mixmatch.w"):
        make_config({**given, "method.weight": 7})
    config = make_config(given)
    assert not {"method.weight", "method.ramp"} & config.of_method().keys()  # nor is it in a summary
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    assert make_config(file=tmp_path / "run.yaml") == config  # a file may hold them


def test_a_summary_holds_what_the_recipe_set() -> None:
    values = make_config({"method.name": "mme", "data.setting": "ssda"}).of_method()
    assert values["network.head"] == "cosine"
    assert values["optim.weight_decay"] == 5e-4
    assert make_config({"method.base": "cdan"}).of_method()["cdan.hidden"] == 1024
