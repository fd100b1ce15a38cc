"""`fastget features import`: a torch file of features, and what may be wrong with one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fastget.data.feature_store import Store
from fastget.features.imported import import_features
from tests.features.support import CLASSES, torch_file


def imported(file: Path | str, out: str = "out", **settings: Any) -> Store:
    return import_features(file, out, name="small", backbone="resnet50", **settings)


@pytest.mark.parametrize(
    ("given", "asked", "stored"),
    [
        (torch.float16, None, "float16"),
        (torch.float32, None, "float32"),
        (torch.float64, None, "float32"),
        (torch.bfloat16, None, "float32"),
        (torch.float32, "float16", "float16"),
    ],
)
def test_values_labels_and_classes(given: torch.dtype, asked: Any, stored: str) -> None:
    file = torch_file(Path("given.pt"), dtype=given, per_class=300)  # more than a shard
    imported(file, dtype=asked)
    store, tree = Store.open(Path("out")), torch.load(file)
    assert store.classes == CLASSES
    for domain in ("photo", "sketch"):
        rows = store.rows(domain)
        assert rows.features.dtype == stored
        assert torch.equal(torch.from_numpy(rows.features), tree["feats"][domain].to(getattr(torch, stored)))
        assert rows.labels.tolist() == tree["labels"][domain].tolist()
        assert len(set(rows.paths)) == 1200
        assert len(store.domains[domain]) == 2
    assert (store.origin.backbone, store.origin.dim, store.origin.data) == ("resnet50", 64, "small")


def test_paths_where_there_are_some() -> None:
    tree = torch.load(torch_file(Path("given.pt")))
    tree["paths"] = {domain: [f"{domain}/{i}.jpg" for i in range(48)] for domain in tree["feats"]}
    torch.save(tree, "given.pt")
    assert imported("given.pt").rows("sketch").paths[47] == "sketch/47.jpg"
    tree["paths"]["photo"][1] = "photo/0.jpg"
    torch.save(tree, "given.pt")
    with pytest.raises(ValueError, match="the paths of photo must be 48 different texts"):
        imported("given.pt", "other")


def test_what_is_wrong_is_said() -> None:
    good = torch.load(torch_file(Path("given.pt")))
    feats, labels = good["feats"], good["labels"]
    infinite = feats["photo"].clone()
    infinite[0, 0] = float("inf")
    wrong: list[tuple[Any, str]] = [
        ([1, 2], "lacks feats, labels, classes: expected"),
        ({"feats": feats, "labels": labels}, "lacks classes: expected"),
        ({**good, "labels": {"photo": labels["photo"]}}, "must be of the same domains"),
        ({**good, "feats": {}, "labels": {}}, "must be of the same domains, one or more"),
        ({**good, "classes": 4}, "classes must be the names"),
        ({**good, "feats": {**feats, "photo": feats["photo"][0]}}, r"features of photo must be \(n, D\)"),
        ({**good, "feats": {**feats, "photo": feats["photo"].long()}}, r"features of photo must be \(n, D\)"),
        ({**good, "feats": {**feats, "photo": feats["photo"][:, :9]}}, "of different widths"),
        ({**good, "labels": {**labels, "photo": labels["photo"][:-1]}}, "labels of photo must be 48 whole numbers"),
        ({**good, "labels": {**labels, "photo": labels["photo"] + 1}}, "go from 1 to 4, and there are 4 classes"),
        ({**good, "feats": {**feats, "photo": infinite}}, "features of photo are not all finite"),
    ]
    for tree, words in wrong:
        torch.save(tree, "wrong.pt")
        with pytest.raises(ValueError, match=words):
            imported("wrong.pt")
    large = {**good, "feats": {name: value.float() * 1e6 for name, value in feats.items()}}
    torch.save(large, "large.pt")
    with pytest.raises(ValueError, match="exceed float16: use --dtype float32"):
        imported("large.pt", dtype="float16")
    assert not Path("out").exists()


def test_a_file_that_could_run_code_is_not_loaded() -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (Path("ran"),)

    torch.save({"feats": Evil()}, "evil.pt")
    with pytest.raises(ValueError, match=r"evil\.pt is not a torch file of tensors alone"):
        imported("evil.pt")
    assert not Path("ran").exists()
    Path("text.pt").write_text("no torch file")
    with pytest.raises(ValueError, match=r"text\.pt is a text file, not a torch file"):
        imported("text.pt")
    with pytest.raises(ValueError, match=r"no file gone\.pt"):
        imported("gone.pt")


def test_nothing_is_written_over() -> None:
    imported(torch_file(Path("given.pt")))
    with pytest.raises(ValueError, match="out holds features already: choose another --out"):
        imported("given.pt")
