"""No file of a domain's folder is lost: it is used, or counted with its reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from fastget.config import DataConfig
from fastget.data.domains import load_domains, read_domains
from fastget.data.folders import unused_notes, walk
from tests.pictures import pixels, write_domains


def config(root: Path, **fields: str) -> DataConfig:
    return DataConfig(**{"name": "folder", "root": str(root), "source": "photo", "target": "sketch", **fields})  # type: ignore[arg-type]


def save(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(0)).save(file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_domains(tmp_path / "data", per_class=2)


def test_deeper_folders_are_read_after_the_class_folders_own_images(root: Path) -> None:
    flat = read_domains("folder", str(root))[0].paths
    save(root / "photo" / "ant" / "a" / "deeper" / "1.png")
    save(root / "photo" / "ant" / "2.png")
    (images, _) = read_domains("folder", str(root))
    assert images.paths[:4] == ["photo/ant/000.png", "photo/ant/001.jpg", "photo/ant/2.png", "photo/ant/a/deeper/1.png"]
    assert images.labels[:5].tolist() == [0, 0, 0, 0, 1]
    assert [path for path in images.paths if path in flat] == flat  # in the order that they had


def test_every_other_file_is_counted_with_its_reason(root: Path) -> None:
    place = root / "photo"
    for name in ("ant/a.heic", "ant/b.HEIC", "ant/noext", "ant/Thumbs.db", "ant/.DS_Store", "notes.txt"):
        (place / name).write_bytes(b"x")
    save(place / "beside.png")
    save(place / ".cache" / "hidden.png")
    (place / "dog").mkdir()
    (root / "sketch" / "dog").mkdir()
    (place / "bee" / "circle").symlink_to(place / "bee")
    domains = load_domains(config(root))
    unused = {entry["path"]: entry["reason"] for entry in domains.protocol["unused"]}
    assert set(unused) == {
        *(f"photo/{name}" for name in ("ant/a.heic", "ant/b.HEIC", "ant/noext", "ant/Thumbs.db", "ant/.DS_Store")),
        *(f"photo/{name}" for name in ("notes.txt", "beside.png", ".cache/hidden.png", "dog", "bee/circle")),
        "sketch/dog",
    }
    assert domains.source.classes == ("ant", "bee", "cat")  # an empty folder is no class
    notes = "\n".join(domains.notes)
    assert (
        "photo: 2 not used, .heic is not read, convert it to JPEG or PNG: photo/ant/a.heic, photo/ant/b.HEIC" in notes
    )
    assert "photo: 1 not used, without an extension: photo/ant/noext" in notes
    assert "photo: 1 not used, beside the class folders, so of no class: photo/beside.png" in notes
    assert "photo: 2 not used, hidden" in notes
    assert "photo: 1 not used, a class folder without images, so no class: photo/dog" in notes
    files = sum(len(names) for _, _, names in os.walk(place))
    assert len(domains.source) + sum(1 for path in unused if (root / path).is_file() and path[:6] == "photo/") == files
    assert load_domains(config(root, source="sketch", target="photo")).notes  # and of a target


def test_a_class_that_is_empty_in_the_source_alone(root: Path) -> None:
    (root / "photo" / "dog").mkdir()
    save(root / "sketch" / "dog" / "0.png")
    with pytest.raises(ValueError, match=r"source lacks: dog \(the source's folders of dog hold no image"):
        load_domains(config(root))


def test_a_target_that_lacks_a_class_is_told_of_pda(root: Path) -> None:
    for file in (root / "sketch" / "bee").iterdir():
        file.unlink()
    notes = "\n".join(load_domains(config(root)).notes)
    assert "sketch has no image of 1 of the 3 classes: bee" in notes
    assert "--setting pda --set data.pda_classes=3" in notes
    assert "--setting pda" not in "\n".join(load_domains(config(root, setting="pda")).notes)


def test_source_and_target_are_the_same(root: Path) -> None:
    notes = load_domains(config(root, target="photo")).notes
    assert any("6 of the 6 images of photo are among the target's too" in note for note in notes)
    assert not any("among the target's" in note for note in load_domains(config(root)).notes)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_without_permission(root: Path) -> None:
    _closed(root)
    try:
        _assert_closed(root)
    finally:
        (root / "photo" / "bee").chmod(0o755)


def test_a_folder_that_cannot_be_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for whoever may read every folder."""
    real = os.scandir

    def refused(place: str) -> object:
        if str(place).endswith("photo/bee"):
            raise PermissionError(13, "Permission denied")
        return real(place)

    monkeypatch.setattr("os.scandir", refused)
    _assert_closed(root)


def _closed(root: Path) -> None:
    (root / "photo" / "bee").chmod(0)


def _assert_closed(root: Path) -> None:
    with pytest.raises(ValueError, match="photo/bee is a folder that may not be read") as error:
        load_domains(config(root, target="photo"))
    assert "--bad-images skip" in str(error.value)
    domains = load_domains(config(root, target="photo", bad_images="skip"))
    assert domains.source.classes == ("ant", "cat")
    assert any("a folder that may not be read (Permission denied): photo/bee" in note for note in domains.notes)


def test_an_office31_tree_under_another_name(tmp_path: Path) -> None:
    for domain in ("amazon", "webcam"):
        for name in ("bike", "mug"):
            save(tmp_path / domain / "images" / name / "0.png")
    for read in (
        lambda: read_domains("folder", str(tmp_path)),
        lambda: load_domains(config(tmp_path, source="amazon", target="webcam")),
    ):
        with pytest.raises(ValueError, match="--data office31"):
            read()
    assert len(read_domains("office31", str(tmp_path))[0]) == 2
    (tmp_path / "amazon" / "interest_points").mkdir()
    (tmp_path / "amazon" / "interest_points" / "a.mat").write_bytes(b"x")
    (images, _) = read_domains("office31", str(tmp_path))
    assert [one.path for one in images.unused] == ["amazon/interest_points/a.mat"]


def test_class_folders_whose_names_are_no_text(root: Path) -> None:
    os.mkdir(os.fsencode(root / "photo") + b"/caf\xe9")
    with pytest.raises(ValueError, match=r"caf\\xe9.*not UTF-8 text: rename it"):
        load_domains(config(root))


def test_a_folder_given_by_a_relative_path_is_not_hidden(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    assert walk("../data", "./photo/ant").images == ["./photo/ant/000.png", "./photo/ant/001.jpg"]
    assert unused_notes("x", []) == []
