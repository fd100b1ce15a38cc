"""Features that another program made, from a torch file: {"feats": {domain: (n, D)}, "labels": {domain: (n,)},
"classes": [names]}, and "paths": {domain: [n texts]} where it knows them. No object of the file is ever run."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastget.common.archive import START, other_content
from fastget.common.files import writing
from fastget.data.feature_store import INDEX, FeatureRows, FeatureType, Origin, Store, shard_name, write_shard
from fastget.data.lists import UNLABELLED
from fastget.features.make import SHARD

FORM = 'expected {"feats": {domain: (n, D)}, "labels": {domain: (n,)}, "classes": [names]}'


def import_features(
    file: str | Path, out: str | Path, *, name: str, backbone: str, dtype: FeatureType | None = None
) -> Store:
    """The features of a torch file as a folder that `fastget train --data features` reads.

    `dtype`: none stores them as the file does, float32 for wider types. ValueError says what the file lacks.
    """
    file, out = Path(file), Path(out)
    if (out / INDEX).exists():
        raise ValueError(f"{out} holds features already: choose another --out")
    tree = _load(file)
    classes = tuple(map(str, tree["classes"]))
    widths = {domain: int(value.shape[1]) for domain, value in tree["feats"].items()}
    if len(set(widths.values())) != 1:
        raise ValueError(f"{file}: the domains' features are of different widths ({widths}): are they of one backbone?")
    half = all(value.dtype == torch.float16 for value in tree["feats"].values())
    stored: FeatureType = dtype or ("float16" if half else "float32")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    origin = Origin(
        name, backbone, f"imported from {file.name}", sha256, next(iter(widths.values())), stored, "unknown"
    )
    domains = {domain: _rows(tree, domain, stored, file) for domain in tree["feats"]}
    store = Store(out, origin, classes)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for domain, rows in domains.items():
            store.domains[domain] = tuple(
                write_shard(out / shard_name(domain, k), rows.part(start, start + SHARD), origin, f"{sha256} {start}")
                for k, start in enumerate(range(0, len(rows), SHARD))
            )
        store.write()
    return store


def _load(file: Path) -> dict[str, Any]:
    """The file's content, of the form that is expected."""
    if not file.is_file():
        raise ValueError(f"no file {file}: give a torch file of features; {FORM}")
    with file.open("rb") as stream:
        if what := other_content(stream.read(START)):
            raise ValueError(f"{file} is {what}, not a torch file of features: {FORM}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes its readers raise almost anything
        raise ValueError(f"{file} is not a torch file of tensors alone, or damaged; {FORM}") from error
    lacking = [key for key in ("feats", "labels", "classes") if not isinstance(tree, Mapping) or key not in tree]
    if lacking:
        raise ValueError(f"{file} lacks {', '.join(lacking)}: {FORM}")
    feats, labels = tree["feats"], tree["labels"]
    if not isinstance(feats, Mapping) or not isinstance(labels, Mapping) or set(feats) != set(labels) or not feats:
        raise ValueError(f"{file}: feats and labels must be of the same domains, one or more; {FORM}")
    if not isinstance(tree["classes"], (list, tuple)) or not tree["classes"]:
        raise ValueError(f"{file}: classes must be the names of the classes, in the order of their labels; {FORM}")
    for domain, value in feats.items():
        if not isinstance(value, Tensor) or value.ndim != 2 or not value.is_floating_point() or not value.numel():
            raise ValueError(f"{file}: the features of {domain} must be (n, D) floating-point numbers; {FORM}")
    return dict(tree)


def _rows(tree: dict[str, Any], domain: str, stored: FeatureType, file: Path) -> FeatureRows:
    values, labels = tree["feats"][domain], tree["labels"][domain]
    if not isinstance(labels, Tensor) or labels.shape != values.shape[:1] or labels.is_floating_point():
        raise ValueError(f"{file}: the labels of {domain} must be {len(values):,} whole numbers, one for each row")
    labels, last = labels.to(torch.int64), len(tree["classes"]) - 1
    if int(labels.min()) < UNLABELLED or int(labels.max()) > last:
        raise ValueError(
            f"{file}: the labels of {domain} go from {int(labels.min())} to {int(labels.max())}, and there are "
            f"{last + 1} classes: expected 0 to {last}, or {UNLABELLED} for none"
        )
    kept = values.to(getattr(torch, stored))
    if not bool(torch.isfinite(kept).all()):
        finite = bool(torch.isfinite(values).all())
        fix = "exceed float16: use --dtype float32" if finite else "are not all finite"
        raise ValueError(f"{file}: the features of {domain} {fix}")
    paths = tree.get("paths", {}).get(domain) or [f"{domain}/{i:06d}" for i in range(len(values))]
    if len(paths) != len(values) or len(set(paths)) != len(paths):
        raise ValueError(f"{file}: the paths of {domain} must be {len(values):,} different texts")
    return FeatureRows(kept.contiguous().numpy(), np.asarray(labels), [str(path) for path in paths])
