"""Folders of class folders: one reader for all data sets, and no image that is passed over in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fastget.config import DataConfig
from fastget.data.check.files import check_lists
from fastget.data.domains import load_domains, read_domains
from fastget.data.folders import domains_from_folders
from fastget.data.formats import FORMATS, SUFFIXES, sniff
from fastget.data.lists import UNLABELLED
from tests.pictures import pixels, write_domains


def test_the_first_domain_leads(tmp_path: Path) -> None:
    source, target = domains_from_folders(write_domains(tmp_path), "photo", "sketch")
    assert source.classes == ("ant", "bee", "cat")
    assert source.counts().tolist() == [12, 12, 12]
    assert target.paths[0] == "sketch/ant/000.png"
    with pytest.raises(ValueError, match="no domain folder"):
        domains_from_folders(tmp_path, "photo", "painting")
    (tmp_path / "sketch" / "dog").mkdir()
    with pytest.raises(ValueError, match="class folders that the source lacks: dog"):
        domains_from_folders(tmp_path, "photo", "sketch")
    with pytest.raises(ValueError, match="holds no class folders"):
        domains_from_folders(tmp_path, "photo/ant", "photo")


def test_without_a_leader_the_classes_are_those_of_all(tmp_path: Path) -> None:
    write_domains(tmp_path, per_class=2)
    (tmp_path / "photo" / "ant").rename(tmp_path / "photo" / "zebra")
    (tmp_path / "plain").mkdir()
    Image.fromarray(pixels(0)).save(tmp_path / "plain" / "0.png")
    lists = read_domains("folder", str(tmp_path))
    assert [images.name for images in lists] == ["photo", "plain", "sketch"]
    assert {images.classes for images in lists} == {("ant", "bee", "cat", "zebra")}
    assert lists[0].labels.tolist() == [1, 1, 2, 2, 3, 3]
    assert lists[1].labels.tolist() == [UNLABELLED]
    with pytest.raises(ValueError, match="holds no domain folders"):
        read_domains("folder", str(tmp_path / "plain"))
    (tmp_path / "empty").mkdir()
    for place, why in (
        ("plain", "holds no domain folders"),
        ("empty", "is empty"),
        ("plain/0.png", "is a file"),
        ("gone", "does not exist"),
    ):
        with pytest.raises(ValueError, match=f"no domain folder .*/photo: .*{place} {why}; a domain's images"):
            domains_from_folders(tmp_path / place, "photo")


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
    domains = load_domains(DataConfig(name="folder", root=str(tmp_path), source="photo", target="photo"))
    assert len(domains.source) == len(images)


def test_a_gif_is_named_and_not_passed_over(tmp_path: Path) -> None:
    write_domains(tmp_path, per_class=1)
    Image.fromarray(pixels(0)).save(tmp_path / "photo" / "ant" / "moving.gif")
    data = DataConfig(name="folder", root=str(tmp_path), source="photo", target="sketch")
    with pytest.raises(ValueError, match=r"moving\.gif is a GIF, which the loaders do not read"):
        load_domains(data)
