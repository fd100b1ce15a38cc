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
    with pytest.raises(ValueError, match="out holds features already: choose another --out"):
        imported(file)
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


def changed(**parts: Any) -> Any:
    """What makes another file of a good one: a part of it, or a domain's of feats or labels, through a function."""

    def change(good: dict[str, Any]) -> dict[str, Any]:
        made = {name: part(good[name]) if callable(part) else part for name, part in parts.items()}
        return {name: value for name, value in {**good, **made}.items() if value is not None}

    return change


def photo(change: Any) -> Any:
    return lambda domains: {**domains, "photo": change(domains["photo"])}


def infinite(values: torch.Tensor) -> torch.Tensor:
    values = values.clone()
    values[0, 0] = float("inf")
    return values


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda good: [1, 2], "lacks feats, labels, classes: expected"),
        (changed(classes=None), "lacks classes: expected"),
        (changed(labels=lambda labels: {"photo": labels["photo"]}), "must be of the same domains"),
        (changed(feats={}, labels={}), "must be of the same domains, one or more"),
        (changed(classes=4), "classes must be the names"),
        (changed(feats=photo(lambda rows: rows[0])), r"features of photo must be \(n, D\)"),
        (changed(feats=photo(lambda rows: rows.long())), r"features of photo must be \(n, D\)"),
        (changed(feats=photo(lambda rows: rows[:, :9])), "of different widths"),
        (changed(labels=photo(lambda labels: labels[:-1])), "labels of photo must be 48 whole numbers"),
        (changed(labels=photo(lambda labels: labels + 1)), "go from 1 to 4, and there are 4 classes"),
        (changed(feats=photo(infinite)), "features of photo are not all finite"),
        (changed(feats=photo(lambda rows: rows.float() * 1e6)), "exceed float16: use --dtype float32"),
    ],
)
def test_what_is_wrong_is_said(change: Any, words: str) -> None:
    torch.save(change(torch.load(torch_file(Path("given.pt")))), "wrong.pt")
    with pytest.raises(ValueError, match=words):
        imported("wrong.pt", dtype="float16")
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
