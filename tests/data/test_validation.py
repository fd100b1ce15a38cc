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
from fastget.data.protocols import Domains
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
    files = {"source": "labeled_source_images_real", "target": "unlabeled_target_images_sketch_3", "validation": NAME}
    return published(root, **{"name": "lists", **{k: str(list_of(root, v)) for k, v in files.items()}, **fields})


def list_of(root: Path, name: str) -> Path:
    return root / "txt" / "multi" / f"{name}.txt"


def lines_of(root: Path, name: str) -> list[str]:
    return list_of(root, name).read_text().splitlines()


def edit(root: Path, name: str, lines: list[str]) -> None:
    list_of(root, name).write_text("".join(f"{line}\n" for line in lines))


def shots_in(found: Domains) -> list[int]:
    assert found.labelled_target
    return [int(count) for count in found.labelled_target.counts()[:3]]


# --- where it is found ---------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [1, 3])
def test_the_published_one_goes_with_any_number_of_shots(root: Path, shots: int) -> None:
    found = load_domains(published(root, shots=shots))
    images = found.validation
    assert images
    assert [f"{p} {c}" for p, c in zip(images.paths, images.labels, strict=True)] == lines_of(root, NAME)
    assert (images.counts()[:3].tolist(), shots_in(found)) == ([3, 3, 3], [shots] * 3)
    assert images.classes == found.target.classes
    assert list(found.lists()) == ["source", "target", "labelled_target", "validation"]
    told = found.protocol["lists"]
    assert (told["validation"]["name"], told["validation"]["images"]) == (NAME, 9)
    assert not any("among the unlabelled" in note for note in found.notes)
    list_of(root, NAME).unlink()  # where there is none, nothing else changes
    without = load_domains(published(root, shots=shots))
    assert without.validation is None
    assert without.protocol["lists"] == {k: v for k, v in told.items() if k != "validation"}


@pytest.mark.parametrize("shots", [1, 3])
def test_drawn_shots_leave_the_published_one_alone(root: Path, shots: int) -> None:
    """It belongs to the published split: a draw from the whole target may well take its images."""
    list_of(root, f"labeled_target_images_sketch_{shots}").unlink()
    found = load_domains(published(root, shots=shots))
    assert found.protocol["split"] == "drawn with seed 0"
    assert (found.validation, shots_in(found)) == (None, [shots] * 3)


@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("drawn", [True, False])
def test_given_by_its_field(root: Path, shots: int, drawn: bool) -> None:
    labelled = None if drawn else str(list_of(root, f"labeled_target_images_sketch_{shots}"))
    found = load_domains(by_hand(root, shots=shots, labelled_target=labelled))
    assert found.validation
    assert found.validation.name == NAME
    assert found.validation.paths == load_domains(published(root)).validation.paths  # type: ignore[union-attr]
    assert shots_in(found) == [shots] * 3
    assert found.protocol["split"] == ("drawn with seed 0" if drawn else "published lists")


def test_office_home_s_calls_a_domain_otherwise(tmp_path: Path) -> None:
    images = write_ssda(tmp_path / "small") / "sketch" / "ant"
    for domain in ("Art", "RealWorld"):
        (tmp_path / domain).mkdir()
        (tmp_path / domain / "TV").symlink_to(images)
    lists = tmp_path / "txt" / "office_home"
    lists.mkdir(parents=True)
    for name, image in (("labeled", "000.png"), ("unlabeled", "001.jpg")):
        (lists / f"{name}_target_images_Real_1.txt").write_text(f"Real/TV/{image} 63\n")
    (lists / "validation_target_images_Real_3.txt").write_text("Real/TV/002.jpg 63\n")
    found = load_domains(published(tmp_path, name="office-home", source="Art", target="RealWorld", shots=1))
    assert found.validation
    assert found.labelled_target
    assert found.labelled_target.paths == ["RealWorld/TV/000.png"]
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
    before, shots = lines_of(root, NAME), "labeled_target_images_sketch_3"
    path, label = lines_of(root, shots)[1].split()
    for named in (path, str(root / path)):  # it is known by an absolute path too
        edit(root, NAME, [*before, f"{named} {label}"])
        message = rf"{NAME} must hold none of the labelled shots.* 1 of them: {named}\. Remove them.* or from {shots}"
        with pytest.raises(ValueError, match=message):
            load_domains(published(root, shots=3))
    assert load_domains(published(root, shots=1)).validation  # of one shot a class it is none


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
    assert found.validation
    assert (len(found.target), len(found.validation)) == (len(before) + 2, 9)
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


@pytest.mark.parametrize(
    ("make", "fields", "message"),
    [
        (by_hand, {"setting": "uda"}, r"data\.validation goes with data\.setting=ssda.* setting is uda"),
        (by_hand, {"setting": "pda"}, r"data\.validation goes with data\.setting=ssda.* setting is pda"),
        (published, {"validation": "v.txt"}, r"data\.validation goes with data\.name=lists.* is domainnet126"),
        (by_hand, {"validation": "v.txt"}, r"cannot read the list file v\.txt.* data\.validation"),
    ],
)
def test_the_field_is_refused_elsewhere(root: Path, make: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_domains(make(root, **fields))


def test_a_list_that_is_needed_and_not_there(root: Path) -> None:
    (root / "sketch" / "bee" / "011.jpg").write_bytes(b"")  # it is told before the images are looked at
    list_of(root, NAME).unlink()
    place = rf"labeled_target_images_sketch_1\.txt, as in {root / 'txt' / 'multi'} \(.*1 and 3\)\. Or"
    for data, message in (
        (published(root, shots=1), rf"expected {NAME}\.txt beside .* {place}"),
        (by_hand(root, validation=None), r"give its list file by --set data\.validation=FILE"),
        (make_config({"data.setting": "ssda"}).data, r"handwritten has none: digits has no published one"),
    ):
        with pytest.raises(ValueError, match=message):
            load_domains(data, need_validation=True)
