"""Folders of class folders: no file of a domain is lost, it is used, or counted with its reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from fastget.data.check.files import check_lists
from fastget.data.domains import load_domains, read_domains
from fastget.data.folders import domains_from_folders, unused_notes, walk
from fastget.data.formats import FORMATS, SUFFIXES, sniff
from fastget.data.lists import UNLABELLED
from tests.data.support import on_folders, save
from tests.pictures import pixels, write_domains


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_domains(tmp_path / "data", per_class=2)


# --- classes -------------------------------------------------------------------------------------


def test_the_first_domain_leads(root: Path) -> None:
    source, target = domains_from_folders(root, "photo", "sketch")
    assert source.classes == ("ant", "bee", "cat")
    assert source.counts().tolist() == [2, 2, 2]
    assert target.paths[0] == "sketch/ant/000.png"
    (root / "sketch" / "dog").mkdir()
    for domains, message in (
        (("photo", "painting"), "no domain folder"),
        (("photo", "sketch"), "class folders that the source lacks: dog"),
        (("photo/ant", "photo"), "holds no class folders"),
    ):
        with pytest.raises(ValueError, match=message):
            domains_from_folders(root, *domains)
    (root / "photo" / "dog").mkdir()  # it is there, and empty
    save(root / "sketch" / "dog" / "0.png")
    with pytest.raises(ValueError, match=r"source lacks: dog \(the source's folders of dog hold no image"):
        load_domains(on_folders(root))


def test_without_a_leader_the_classes_are_those_of_all(root: Path) -> None:
    (root / "photo" / "ant").rename(root / "photo" / "zebra")
    save(root / "plain" / "0.png")
    lists = read_domains("folder", str(root))
    assert [images.name for images in lists] == ["photo", "plain", "sketch"]
    assert {images.classes for images in lists} == {("ant", "bee", "cat", "zebra")}
    assert lists[0].labels.tolist() == [1, 1, 2, 2, 3, 3]
    assert lists[1].labels.tolist() == [UNLABELLED]
    with pytest.raises(ValueError, match="holds no domain folders"):
        read_domains("folder", str(root / "plain"))
    (root / "empty").mkdir()
    for place, why in (
        ("plain", "holds no domain folders"),
        ("empty", "is empty"),
        ("plain/0.png", "is a file"),
        ("gone", "does not exist"),
    ):
        with pytest.raises(ValueError, match=f"no domain folder .*/photo: .*{place} {why}; a domain's images"):
            domains_from_folders(root / place, "photo")


def test_class_folders_whose_names_are_no_text(root: Path) -> None:
    os.mkdir(os.fsencode(root / "photo") + b"/caf\xe9")
    with pytest.raises(ValueError, match=r"caf\\xe9.*not UTF-8 text: rename it"):
        load_domains(on_folders(root))


def test_an_office31_tree_under_another_name(tmp_path: Path) -> None:
    save(
        *(tmp_path / domain / "images" / name / "0.png" for domain in ("amazon", "webcam") for name in ("bike", "mug"))
    )
    for read in (
        lambda: read_domains("folder", str(tmp_path)),
        lambda: load_domains(on_folders(tmp_path, source="amazon", target="webcam")),
    ):
        with pytest.raises(ValueError, match="--data office31"):
            read()
    assert len(read_domains("office31", str(tmp_path))[0]) == 2
    (tmp_path / "amazon" / "interest_points").mkdir()
    (tmp_path / "amazon" / "interest_points" / "a.mat").write_bytes(b"x")
    (images, _) = read_domains("office31", str(tmp_path))
    assert [one.path for one in images.unused] == ["amazon/interest_points/a.mat"]


# --- files ---------------------------------------------------------------------------------------


def test_every_format_that_is_read_is_found_under_each_of_its_names(tmp_path: Path) -> None:
    """A folder of .jfif or .pgm files is a folder of images; and the check has nothing to say of them."""
    place = tmp_path / "photo" / "ant"
    place.mkdir(parents=True)
    for kind in FORMATS:
        for suffix in SUFFIXES[kind]:
            image = Image.fromarray(pixels(0)).convert({".pgm": "L", ".pbm": "1"}.get(suffix, "RGB"))
            image.save(place / f"upper_{suffix[1:]}{suffix.upper()}", format=kind)
            image.save(place / f"lower_{suffix[1:]}{suffix}", format=kind)
            assert sniff((place / f"lower_{suffix[1:]}{suffix}").read_bytes()[:64]) == kind
    (place / "notes.txt").write_text("")
    (place / ".hidden.jpg").write_text("")
    (images,) = read_domains("folder", str(tmp_path))
    assert len(images) == 2 * sum(map(len, SUFFIXES.values()))
    assert check_lists([images], full=True).problems == []
    assert len(load_domains(on_folders(tmp_path, target="photo")).source) == len(images)


def test_a_gif_is_named_and_not_passed_over(root: Path) -> None:
    Image.fromarray(pixels(0)).save(root / "photo" / "ant" / "moving.gif")
    with pytest.raises(ValueError, match=r"moving\.gif is a GIF, which the loaders do not read"):
        load_domains(on_folders(root))


def test_deeper_folders_are_read_after_the_class_folders_own_images(root: Path) -> None:
    flat = read_domains("folder", str(root))[0].paths
    save(root / "photo" / "ant" / "a" / "deeper" / "1.png", root / "photo" / "ant" / "2.png")
    (images, _) = read_domains("folder", str(root))
    assert images.paths[:4] == ["photo/ant/000.png", "photo/ant/001.jpg", "photo/ant/2.png", "photo/ant/a/deeper/1.png"]
    assert images.labels[:5].tolist() == [0, 0, 0, 0, 1]
    assert [path for path in images.paths if path in flat] == flat  # in the order that they had


def test_every_other_file_is_counted_with_its_reason(root: Path) -> None:
    place = root / "photo"
    for name in ("ant/a.heic", "ant/b.HEIC", "ant/noext", "ant/Thumbs.db", "ant/.DS_Store", "notes.txt"):
        (place / name).write_bytes(b"x")
    save(place / "beside.png", place / ".cache" / "hidden.png")
    (place / "dog").mkdir()
    (root / "sketch" / "dog").mkdir()
    (place / "bee" / "circle").symlink_to(place / "bee")
    domains = load_domains(on_folders(root))
    unused = {entry["path"] for entry in domains.protocol["unused"]}
    assert unused == {
        *(f"photo/{name}" for name in ("ant/a.heic", "ant/b.HEIC", "ant/noext", "ant/Thumbs.db", "ant/.DS_Store")),
        *(f"photo/{name}" for name in ("notes.txt", "beside.png", ".cache/hidden.png", "dog", "bee/circle")),
        "sketch/dog",
    }
    assert domains.source.classes == ("ant", "bee", "cat")  # an empty folder is no class
    notes = "\n".join(domains.notes)
    for told in (
        "photo: 2 not used, .heic is not read, convert it to JPEG or PNG: photo/ant/a.heic, photo/ant/b.HEIC",
        "photo: 1 not used, without an extension: photo/ant/noext",
        "photo: 1 not used, beside the class folders, so of no class: photo/beside.png",
        "photo: 2 not used, hidden",
        "photo: 1 not used, a class folder without images, so no class: photo/dog",
    ):
        assert told in notes
    files = sum(len(names) for _, _, names in os.walk(place))
    assert len(domains.source) + sum((root / path).is_file() and path[:6] == "photo/" for path in unused) == files
    assert load_domains(on_folders(root, source="sketch", target="photo")).notes  # and of a target


def test_what_is_likely_not_meant_gets_a_note(root: Path) -> None:
    def notes(**fields: str) -> str:
        return "\n".join(load_domains(on_folders(root, **fields)).notes)

    assert "6 of the 6 images of photo are among the target's too" in notes(target="photo")
    assert "among the target's" not in notes()
    for file in (root / "sketch" / "bee").iterdir():
        file.unlink()
    assert "sketch has no image of 1 of the 3 classes: bee" in notes()
    assert "--setting pda --set data.pda_classes=3" in notes()
    assert "--setting pda" not in notes(setting="pda")


@pytest.mark.parametrize("by", ["permission", "scandir"])
def test_a_folder_that_may_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    real, closed = os.scandir, root / "photo" / "bee"

    def refuse(place: str) -> object:  # the same for whoever may read every folder
        if str(place).endswith("photo/bee"):
            raise PermissionError(13, "Permission denied")
        return real(place)

    if by == "permission":
        if os.geteuid() == 0:
            pytest.skip("root may read every folder")
        closed.chmod(0)
    else:
        monkeypatch.setattr("os.scandir", refuse)
    try:
        with pytest.raises(ValueError, match=r"photo/bee is a folder that may not be read.*--bad-images skip"):
            load_domains(on_folders(root, target="photo"))
        domains = load_domains(on_folders(root, target="photo", bad_images="skip"))
    finally:
        closed.chmod(0o755)
    assert domains.source.classes == ("ant", "cat")
    assert any("a folder that may not be read (Permission denied): photo/bee" in note for note in domains.notes)


def test_a_folder_given_by_a_relative_path_is_not_hidden(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    assert walk("../data", "./photo/ant").images == ["./photo/ant/000.png", "./photo/ant/001.jpg"]
    assert unused_notes("x", []) == []
