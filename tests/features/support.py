"""Small folders of features for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import fastget
from fastget.data.feature_store import Store
from fastget.features.imported import import_features
from tests.support import TINY

CLASSES = ("ant", "bee", "cat", "dog")


def torch_file(file: Path, dim: int = 64, per_class: int = 12, dtype: torch.dtype = torch.float16) -> Path:
    """Two domains of four classes about different centres, the second one shifted."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(len(CLASSES), dim, generator=generator)
    labels = torch.arange(len(CLASSES)).repeat_interleave(per_class)
    feats = {
        domain: (centres[labels] + shift + torch.randn(len(labels), dim, generator=generator)).to(dtype)
        for domain, shift in (("photo", 0.0), ("sketch", 0.4))
    }
    byte = labels.to(torch.uint8)
    torch.save({"feats": feats, "labels": dict.fromkeys(feats, byte), "classes": list(CLASSES)}, file)
    return file


def small_store(folder: Path, **settings: Any) -> Store:
    """Made of a torch file beside it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = torch_file(folder.with_suffix(".pt"), **settings)
    return import_features(file, folder, name="small", backbone="resnet50")


def on_features(root: Path, out: Path | str, **settings: Any) -> fastget.Config:
    """A dozen steps. Fields are written with __ for the dot."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    places = {"data.name": "features", "data.root": str(root), "data.source": "photo", "data.target": "sketch"}
    return fastget.make_config({**TINY, **places, "train.out": str(out), **given})
