"""The folder of features: read back as it was written, and whatever is wrong with it is named."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fastget.config import make_config
from fastget.data.domains import find_domains, load_domains, read_domains
from fastget.data.feature_store import INDEX, FeatureRows, Origin, Store, shard_name, write_shard
from fastget.data.lists import ImageList

ORIGIN = Origin(
    "small", "resnet50", "imagenet", "0" * 64, 3, "float16", "float32", 256, 224, "bilinear", (0.5,), (0.25,)
)
PATHS = ["a/1.jpg", "a/ä\udcff\n2.jpg", "b/3.jpg"]  # one that is not UTF-8, with a line's end in it


def rows(first: float = 0.0, label: int = 0) -> FeatureRows:
    values = np.arange(9, dtype=np.float16).reshape(3, 3) + np.float16(first)
    return FeatureRows(values, np.array([label, 1, 1]), PATHS)


@pytest.fixture
def folder() -> Path:
    """Two domains, the second one in two shards."""
    place = Path("features")
    place.mkdir()
    later = dataclasses.replace(rows(9), paths=["a/4.jpg", "b/5.jpg", "b/6.jpg"])
    parts = {"photo": [rows()], "sketch": [rows(), later]}
    domains = {
        name: tuple(write_shard(place / shard_name(name, k), part, ORIGIN, "") for k, part in enumerate(some))
        for name, some in parts.items()
    }
    Store(place, ORIGIN, ("ant", "bee"), domains).write()
    return place


def change_index(folder: Path, **values: Any) -> None:
    tree = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps(tree | values))


def test_it_is_read_back(folder: Path) -> None:
    store = Store.open(folder)
    assert store.origin == ORIGIN
    images = store.images("sketch")
    assert list(images.paths) == [*PATHS, "a/4.jpg", "b/5.jpg", "b/6.jpg"]
    assert images.labels.tolist() == [0, 1, 1, 0, 1, 1]
    assert images.classes == ("ant", "bee")
    assert store.features(images) is store.rows("sketch").features
    assert store.features(images).tolist() == np.arange(18.0).reshape(6, 3).tolist()
    some = images.take(np.array([4, 1]))
    assert store.features(some).tolist() == [[12, 13, 14], [3, 4, 5]]


def test_other_tools_can_read_a_shard(folder: Path) -> None:
    found = load_file(folder / "photo-00000.safetensors")
    assert found["features"].shape == (3, 3)
    assert found["labels"].tolist() == [0, 1, 1]


def test_lists_of_all_or_of_some_domains(folder: Path) -> None:
    assert [images.name for images in read_domains("features", str(folder))] == ["photo", "sketch"]
    data = make_config({"data.name": "features", "data.root": str(folder), "data.source": "sketch"}).data
    with pytest.raises(ValueError, match=r"data\.target is missing: give a domain that `fastget features show` names"):
        find_domains(data)
    with pytest.raises(ValueError, match=r"no features of 'skech' \(did you mean 'sketch'\?\): it has photo, sketch"):
        load_domains(dataclasses.replace(data, target="skech"))
    with pytest.raises(ValueError, match=r"data\.root is missing: give the folder that features lies in"):
        load_domains(dataclasses.replace(data, root=None, target="photo"))
    domains = load_domains(dataclasses.replace(data, target="photo"))
    assert domains.features["source"].shape == (6, 3)
    assert isinstance(domains.target, ImageList)  # no file was looked for: none of them exists
    assert domains.protocol["features"]["backbone"] == "resnet50"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda file: file.unlink(), "is missing"),
        (lambda file: file.write_bytes(b""), "is damaged"),
        (lambda file: file.write_bytes(file.read_bytes()[:-2]), "is damaged"),
        (lambda file: file.write_bytes(file.read_bytes()[:-2] + b"\x00\x01"), "its checksum is wrong"),
        (lambda file: write_shard(file, rows(1), ORIGIN, ""), "is not the shard that the index tells of"),
        (
            lambda file: write_shard(file, rows(), dataclasses.replace(ORIGIN, backbone="resnet18"), ""),
            r"backbone \('resnet50' there, 'resnet18' here\)\. Features of two backbones do not mix",
        ),
    ],
    ids=["missing", "empty", "cut", "a bit", "another shard", "another backbone"],
)
def test_a_wrong_shard_is_named(folder: Path, spoil: Any, words: str) -> None:
    spoil(folder / "sketch-00001.safetensors")
    store = Store.open(folder)
    assert len(store.images("photo")) == 3
    with pytest.raises(ValueError, match=rf"sketch-00001\.safetensors .*{words}"):
        store.images("sketch")


def test_a_wrong_index_is_named(folder: Path) -> None:
    change_index(folder, version=2)
    with pytest.raises(ValueError, match=r"index\.json is of format 2, and this fastget reads format 1"):
        Store.open(folder)
    change_index(folder, version=1, origin={"data": "x"})
    with pytest.raises(ValueError, match=r"index\.json is damaged"):
        Store.open(folder)
    (folder / INDEX).write_text('{"version": 1, ')
    with pytest.raises(ValueError, match=r"index\.json is damaged .*run the same `fastget features` command again"):
        Store.open(folder)
    with pytest.raises(ValueError, match=r"nowhere is no folder of features: .*`fastget features` makes it"):
        Store.open(Path("nowhere"))
    with pytest.raises(ValueError, match=r"index\.json is no folder of features: .*`fastget features import`"):
        Store.open(folder / INDEX)


def test_labels_are_checked(folder: Path) -> None:
    entry = write_shard(folder / shard_name("photo", 0), rows(label=2), ORIGIN, "")
    store = Store.open(folder)
    with pytest.raises(ValueError, match="label 2 in photo is out of range: expected 0 to 1, or -1 for none"):
        dataclasses.replace(store, domains={"photo": (entry,)}).images("photo")
    entry = write_shard(folder / shard_name("photo", 0), rows(label=-1), ORIGIN, "")
    dataclasses.replace(store, domains=store.domains | {"photo": (entry,)}).write()
    settings = {"data.name": "features", "data.root": str(folder)}
    assert not load_domains(
        make_config({**settings, "data.source": "sketch", "data.target": "photo"}).data
    ).target.labelled
    with pytest.raises(ValueError, match="photo has images without a label, and a source needs them all"):
        load_domains(make_config({**settings, "data.source": "photo", "data.target": "sketch"}).data)


def test_a_domain_whose_name_is_no_files() -> None:
    names = ["photo", "real.world-2", "a/b", "a_b", "..", ".hidden", "a b"]
    files = {shard_name(name, 0) for name in names}
    assert len(files) == len(names)
    assert all("/" not in file and not file.startswith(".") for file in files)
    assert shard_name("photo", 7) == "photo-00007.safetensors"
