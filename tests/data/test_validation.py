"""SSDA's validation list: where it is found, what it goes with, and that no shot is among it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastget.commands import data as data_cli
from fastget.config import DataConfig, make_config
from fastget.data import protocols
from fastget.data.domains import load_domains
from fastget.data.lists import ImageList
from tests.pictures import write_ssda

NAME = "validation_target_images_sketch_3"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_ssda(tmp_path / "data")


def published(root: Path, **fields: Any) -> DataConfig:
    settings = {"name": "domainnet126", "root": str(root), "source": "real", "target": "sketch", "setting": "ssda"}
    return make_config({f"data.{key}": value for key, value in {**settings, **fields}.items()}).data


def by_hand(root: Path, **fields: Any) -> DataConfig:
    """The same lists, given one by one."""
    lists = root / "txt" / "multi"
    files = {"source": "labeled_source_images_real", "target": "unlabeled_target_images_sketch_3", "validation": NAME}
    return published(root, **{"name": "lists", **{k: str(lists / f"{v}.txt") for k, v in files.items()}, **fields})


def edit(root: Path, name: str, lines: list[str]) -> None:
    (root / "txt" / "multi" / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def lines_of(root: Path, name: str) -> list[str]:
    return (root / "txt" / "multi" / f"{name}.txt").read_text().splitlines()


# --- where it is found ---------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [1, 3])
def test_the_published_one_goes_with_any_number_of_shots(root: Path, shots: int) -> None:
    found = load_domains(published(root, shots=shots))
    assert found.validation
    assert found.labelled_target
    assert [f"{p} {c}" for p, c in zip(found.validation.paths, found.validation.labels, strict=True)] == lines_of(
        root, NAME
    )
    assert found.validation.counts()[:3].tolist() == [3, 3, 3]
    assert found.labelled_target.counts()[:3].tolist() == [shots] * 3
    assert found.validation.classes == found.target.classes
    assert list(found.lists()) == ["source", "target", "labelled_target", "validation"]
    assert found.protocol["lists"]["validation"]["name"] == NAME
    assert found.protocol["lists"]["validation"]["images"] == 9
    assert not any("among the unlabelled" in note for note in found.notes)


@pytest.mark.parametrize("shots", [1, 3])
def test_where_there_is_none_nothing_changes(root: Path, shots: int) -> None:
    with_it = load_domains(published(root, shots=shots))
    (root / "txt" / "multi" / f"{NAME}.txt").unlink()
    found = load_domains(published(root, shots=shots))
    assert found.validation is None
    assert list(found.lists()) == ["source", "target", "labelled_target"]
    assert found.protocol["lists"] == {k: v for k, v in with_it.protocol["lists"].items() if k != "validation"}


@pytest.mark.parametrize("shots", [1, 3])
def test_drawn_shots_leave_the_published_one_alone(root: Path, shots: int) -> None:
    """It belongs to the published split: a draw from the whole target may well take its images."""
    (root / "txt" / "multi" / f"labeled_target_images_sketch_{shots}.txt").unlink()
    found = load_domains(published(root, shots=shots))
    assert found.labelled_target
    assert found.protocol["split"] == "drawn with seed 0"
    assert found.labelled_target.counts()[:3].tolist() == [shots] * 3
    assert found.validation is None


@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("drawn", [True, False])
def test_given_by_its_field(root: Path, shots: int, drawn: bool) -> None:
    labelled = None if drawn else str(root / "txt" / "multi" / f"labeled_target_images_sketch_{shots}.txt")
    found = load_domains(by_hand(root, shots=shots, labelled_target=labelled))
    assert found.validation
    assert found.labelled_target
    assert found.validation.name == NAME
    assert found.validation.paths == load_domains(published(root)).validation.paths  # type: ignore[union-attr]
    assert found.labelled_target.counts()[:3].tolist() == [shots] * 3
    assert found.protocol["split"] == ("drawn with seed 0" if drawn else "published lists")


def test_office_home_s_calls_a_domain_otherwise(tmp_path: Path) -> None:
    images = write_ssda(tmp_path / "small") / "sketch" / "ant"
    for domain in ("Art", "RealWorld"):
        (tmp_path / domain).mkdir()
        (tmp_path / domain / "TV").symlink_to(images)
    lists = tmp_path / "txt" / "office_home"
    lists.mkdir(parents=True)
    for part, name in (("labeled", "000.png"), ("unlabeled", "001.jpg")):
        (lists / f"{part}_target_images_Real_1.txt").write_text(f"Real/TV/{name} 63\n")
    (lists / "validation_target_images_Real_3.txt").write_text("Real/TV/002.jpg 63\n")
    settings = {"name": "office-home", "root": str(tmp_path), "target": "RealWorld", "setting": "ssda", "shots": 1}
    found = load_domains(make_config({f"data.{key}": value for key, value in settings.items()}).data)
    assert found.validation
    assert found.validation.paths == ["RealWorld/TV/002.jpg"]


# --- as one of the run's lists -------------------------------------------------------------------


def test_its_bad_files_are_found(root: Path) -> None:
    (root / "sketch" / "bee" / "004.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"1 of 72 images cannot be read: .*sketch/bee/004\.jpg"):
        load_domains(published(root))
    found = load_domains(published(root, bad_images="skip"))
    assert found.validation
    assert found.validation.counts()[:3].tolist() == [3, 2, 3]


def test_it_is_read_from_a_packed_cache(root: Path) -> None:
    parser = argparse.ArgumentParser()
    data_cli.add_arguments(parser)
    for command in (["show"], ["check"], ["pack", "--resize", "32"]):
        assert data_cli.run(parser.parse_args([command[0], "domainnet126", "--root", str(root), *command[1:]])) == 0
    packed = load_domains(published(root, resize=32, crop=28, interpolation="bilinear")).packed
    assert set(packed) == {"source", "target", "labelled_target", "validation"}
    assert packed["validation"].read(8) is not None


# --- what it may not hold ------------------------------------------------------------------------


def test_one_of_the_shots_among_it_is_refused(root: Path) -> None:
    shot = lines_of(root, "labeled_target_images_sketch_3")[1]
    edit(root, NAME, [*lines_of(root, NAME), shot])
    message = rf"{NAME} must hold none of the labelled shots.* 1 of them: {shot.split()[0]}\. Remove them"
    with pytest.raises(ValueError, match=message) as error:
        load_domains(published(root, shots=3))
    assert "or from labeled_target_images_sketch_3" in str(error.value)
    assert load_domains(published(root, shots=1)).validation  # of one shot a class it is none


def test_a_shot_is_known_by_an_absolute_path_too(root: Path) -> None:
    path, label = lines_of(root, "labeled_target_images_sketch_1")[0].split()
    edit(root, NAME, [f"{root / path} {label}"])
    with pytest.raises(ValueError, match="must hold none of the labelled shots"):
        load_domains(published(root, shots=1))


def test_a_drawn_shot_among_it_is_refused_with_advice() -> None:
    labels = np.repeat(np.arange(2), 9)
    target = ImageList("target", Path("/data"), [f"{i}.jpg" for i in range(18)], labels, ("a", "b"))
    with pytest.raises(ValueError, match=r"holds 6 of them: .* and 1 more.*draw other shots by data\.split_seed"):
        protocols.apply(target, target, DataConfig(setting="ssda", shots=3), validation=target)


def test_one_among_the_unlabelled_stays_there_and_is_counted(root: Path) -> None:
    name = "unlabeled_target_images_sketch_3"
    before = load_domains(published(root)).target
    edit(root, name, [*lines_of(root, name), *lines_of(root, NAME)[:2]])
    found = load_domains(published(root))
    assert len(found.target) == len(before) + 2
    assert found.validation
    assert len(found.validation) == 9
    said = f"{NAME}: 2 of its 9 images are among the unlabelled ones of {name} too, and stay there"
    assert any(note.startswith(said) for note in found.notes)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sketch/ant/003.png 3", rf"{NAME}\.txt, line 1: class 3 is out of range: expected classes 0 to 2"),
        ("sketch/ant/003.png", rf"{NAME}\.txt, line 1: .*the label is missing"),
    ],
)
def test_its_labels_are_the_source_s(root: Path, line: str, message: str) -> None:
    edit(root, NAME, [line])
    with pytest.raises(ValueError, match=message):
        load_domains(by_hand(root))


# --- where it is refused, and where it is missed -------------------------------------------------


def test_the_field_is_refused_elsewhere(root: Path) -> None:
    for setting in ("uda", "pda"):
        with pytest.raises(ValueError, match=rf"data\.validation goes with data\.setting=ssda.* setting is {setting}"):
            load_domains(by_hand(root, setting=setting))
    with pytest.raises(ValueError, match=r"data\.validation goes with data\.name=lists.* is domainnet126"):
        load_domains(published(root, validation="v.txt"))
    with pytest.raises(ValueError, match=r"cannot read the list file v\.txt.* data\.validation"):
        load_domains(by_hand(root, validation="v.txt"))


def test_a_list_that_is_needed_and_not_there(root: Path) -> None:
    (root / "sketch" / "bee" / "011.jpg").write_bytes(b"")  # it is told before the images are looked at
    (root / "txt" / "multi" / f"{NAME}.txt").unlink()
    lists = root / "txt" / "multi"
    message = rf"expected {NAME}\.txt beside .* labeled_target_images_sketch_1\.txt, as in {lists} \(.*1 and 3\)\. Or"
    with pytest.raises(ValueError, match=message):
        load_domains(published(root, shots=1), need_validation=True)
    with pytest.raises(ValueError, match=r"give its list file by --set data\.validation=FILE"):
        load_domains(by_hand(root, validation=None), need_validation=True)
    digits = make_config({"data.setting": "ssda"}).data
    with pytest.raises(ValueError, match=r"handwritten has none: digits has no published one"):
        load_domains(digits, need_validation=True)
